import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;

/** One JSON line a step. Texts are printed as they are: the scenario has none that need an escape. */
final class Report {
    private final Map<String, Object> values = new LinkedHashMap<>();

    Report(String step) {
        values.put("step", step);
    }

    Report with(String key, Object value) {
        values.put(key, value);
        return this;
    }

    void print() {
        System.out.println(json(values));
    }

    private static String json(Object value) {
        if (value instanceof Map) {
            return ((Map<?, ?>) value)
                    .entrySet().stream()
                            .map(entry -> json(entry.getKey()) + ":" + json(entry.getValue()))
                            .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection) {
            return ((Collection<?>) value).stream().map(Report::json).collect(Collectors.joining(",", "[", "]"));
        }
        return value instanceof String ? "\"" + value + "\"" : String.valueOf(value);
    }
}
