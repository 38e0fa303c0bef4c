"""Small web pages: buttons, forms, menus, mailboxes, tables, shapes."""
