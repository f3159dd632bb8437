"""What one run is compared with another by."""
