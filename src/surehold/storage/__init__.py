"""Media that keep sealed records, all behind `base.Storage`."""
