import com.carrotsearch.randomizedtesting.RandomizedRunner;
import com.carrotsearch.randomizedtesting.annotations.ThreadLeakScope;
import com.carrotsearch.randomizedtesting.annotations.Timeout;
import com.carrotsearch.randomizedtesting.annotations.TimeoutSuite;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.node.MockNode;
import org.elasticsearch.plugins.Plugin;
import org.junit.Test;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;
import org.junit.runner.RunWith;

/**
 * One node of Elasticsearch: {@code java -cp 'classes:jars/*' RealElasticsearch DIRECTORY HTTP_PORT TRANSPORT_PORT PLUGINS NAME=VALUE…},
 * PLUGINS being classes with commas between them. It lives inside a randomized test: the test framework's jars, which have the node
 * that takes plugins from the class path, ask for one wherever they draw a random number.
 */
@RunWith(RandomizedRunner.class)
@ThreadLeakScope(ThreadLeakScope.Scope.NONE)
@TimeoutSuite(millis = Integer.MAX_VALUE)
@Timeout(millis = Integer.MAX_VALUE)
public class RealElasticsearch {
    private static String[] arguments;

    public static void main(String[] given) {
        arguments = given;
        Result result = JUnitCore.runClasses(RealElasticsearch.class);
        result.getFailures().forEach(failure -> System.out.println(failure.getTrace()));
        System.exit(result.wasSuccessful() ? 0 : 1);
    }

    @Test
    public void serve() throws Exception {
        Path home = Path.of(arguments[0]);
        Files.createDirectories(home.resolve("config"));
        Settings.Builder settings = Settings.builder().put("path.home", home.toString()).put("http.port", arguments[1])
            .put("transport.port", arguments[2]).put("http.type", "netty4").put("transport.type", "netty4");
        for (int i = 4; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        List<Class<? extends Plugin>> plugins = new ArrayList<>();
        for (String name : arguments[3].split(",")) {
            plugins.add(Class.forName(name).asSubclass(Plugin.class));
        }
        beginLogging();
        new MockNode(settings.build(), plugins).start();
        Thread.currentThread().join();
    }

    /** Version 9 asks for a step before, which version 7 does not have. */
    private static void beginLogging() throws Exception {
        try {
            LogConfigurator.class.getMethod("configureESLogging").invoke(null);
        } catch (NoSuchMethodException none) {
            // version 7
        }
        LogConfigurator.configureWithoutConfig(Settings.EMPTY);
    }
}
