"""What a model or a rule makes of a manifest's texts: views with less said, and hard negatives."""
