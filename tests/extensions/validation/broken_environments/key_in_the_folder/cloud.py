"""Settings of the cloud. The key is the one of its documentation."""

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
