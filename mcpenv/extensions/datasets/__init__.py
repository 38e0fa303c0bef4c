"""Tasks in Parquet files, in datasets of Hugging Face, and in their folders of data files."""
