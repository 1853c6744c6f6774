"""``KafkaTopic``: a sink that publishes each epoch in one Kafka transaction."""
