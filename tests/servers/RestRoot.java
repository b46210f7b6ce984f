import java.util.Collection;
import java.util.List;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.elasticsearch.Build;
import org.elasticsearch.client.internal.node.NodeClient;
import org.elasticsearch.cluster.node.DiscoveryNodes;
import org.elasticsearch.features.NodeFeature;
import org.elasticsearch.plugins.ActionPlugin;
import org.elasticsearch.plugins.Plugin;
import org.elasticsearch.rest.BaseRestHandler;
import org.elasticsearch.rest.RestHandler;
import org.elasticsearch.rest.RestRequest;
import org.elasticsearch.rest.RestResponse;
import org.elasticsearch.rest.RestStatus;

/** {@code GET /} of Elasticsearch 9, whose module rest-root no registry has. */
public class RestRoot extends Plugin implements ActionPlugin {
    private static final String ANSWER = "{\"version\":{\"number\":\"%s\",\"build_flavor\":\"default\"},\"tagline\":\"You Know, for Search\"}";

    @Override
    public Collection<RestHandler> getRestHandlers(
        RestHandlersServices services, Supplier<DiscoveryNodes> nodes, Predicate<NodeFeature> features
    ) {
        return List.of(new Handler());
    }

    private static class Handler extends BaseRestHandler {
        @Override
        public String getName() {
            return "root";
        }

        @Override
        public List<Route> routes() {
            return List.of(new Route(RestRequest.Method.GET, "/"));
        }

        @Override
        protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) {
            String answer = ANSWER.formatted(Build.current().version());
            return channel -> channel.sendResponse(new RestResponse(RestStatus.OK, "application/json", answer));
        }
    }
}
