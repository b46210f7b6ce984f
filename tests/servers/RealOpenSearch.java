import org.codelibs.opensearch.runner.OpenSearchRunner;

/** One node of OpenSearch: {@code java -cp 'jars/*' RealOpenSearch.java DIRECTORY HTTP_PORT TRANSPORT_PORT NAME=VALUE…} */
public class RealOpenSearch {
    public static void main(String[] arguments) throws Exception {
        new OpenSearchRunner().onBuild((number, settings) -> {
            settings.put("http.port", arguments[1]);
            settings.put("transport.port", arguments[2]);
            for (int i = 3; i < arguments.length; i++) {
                String[] setting = arguments[i].split("=", 2);
                settings.put(setting[0], setting[1]);
            }
        }).build(OpenSearchRunner.newConfigs().basePath(arguments[0]).numOfNode(1).clusterName("pgsluice"));
        Thread.currentThread().join();
    }
}
