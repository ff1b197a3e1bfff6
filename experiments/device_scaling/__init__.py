"""What more devices and processes of one host bring: times, efficiencies, memory, differences."""
