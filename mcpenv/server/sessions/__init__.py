"""Sessions: one environment instance each, their capacity, handles and kept answers."""
