"""Operations: a system of services that fails, and the tools to mend it."""
