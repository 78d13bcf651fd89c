package relay;

import io.namastack.outbox.handler.OutboxHandler;
import io.namastack.outbox.handler.OutboxRecordMetadata;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.scheduling.annotation.EnableScheduling;

/** What a service with Namastack Outbox is: the starter, and a handler that publishes. */
@SpringBootApplication
@EnableScheduling
public class Relay implements OutboxHandler {
    private final KafkaProducer<String, byte[]> producer;
    private final String topic;

    public Relay(@Value("${relay.servers}") String servers, @Value("${relay.topic}") String topic) {
        this.topic = topic;
        this.producer = new KafkaProducer<>(
            Map.of("bootstrap.servers", servers, "acks", "all", "enable.idempotence", true, "linger.ms", 0),
            new StringSerializer(), new ByteArraySerializer());
    }

    @Override
    public void handle(Object payload, OutboxRecordMetadata metadata) {
        var record = new ProducerRecord<>(
            topic, metadata.getKey(), payload.toString().getBytes(StandardCharsets.UTF_8));
        metadata.getContext().forEach((name, value) ->
            record.headers().add(name, value.getBytes(StandardCharsets.UTF_8)));
        try {
            producer.send(record).get();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Relay.class, arguments);
    }
}
