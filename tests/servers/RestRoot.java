import java.util.Collection;
import java.util.List;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.elasticsearch.Build;
import org.elasticsearch.action.ActionListener;
import org.elasticsearch.action.ActionRequest;
import org.elasticsearch.action.ActionRequestValidationException;
import org.elasticsearch.action.ActionResponse;
import org.elasticsearch.action.ActionType;
import org.elasticsearch.action.support.ActionFilters;
import org.elasticsearch.action.support.TransportAction;
import org.elasticsearch.client.internal.node.NodeClient;
import org.elasticsearch.cluster.node.DiscoveryNodes;
import org.elasticsearch.common.util.concurrent.EsExecutors;
import org.elasticsearch.features.NodeFeature;
import org.elasticsearch.injection.guice.Inject;
import org.elasticsearch.plugins.ActionPlugin;
import org.elasticsearch.plugins.Plugin;
import org.elasticsearch.rest.BaseRestHandler;
import org.elasticsearch.rest.RestHandler;
import org.elasticsearch.rest.RestRequest;
import org.elasticsearch.rest.RestResponse;
import org.elasticsearch.rest.RestStatus;
import org.elasticsearch.rest.action.RestActionListener;
import org.elasticsearch.tasks.Task;
import org.elasticsearch.transport.TransportService;

/** {@code GET /} of Elasticsearch 9, whose module rest-root no registry has. The action has that one's name, which roles permit. */
public class RestRoot extends Plugin implements ActionPlugin {
    private static final ActionType<ActionResponse.Empty> MAIN = new ActionType<>("cluster:monitor/main");
    private static final String ANSWER = "{\"version\":{\"number\":\"%s\",\"build_flavor\":\"default\"},\"tagline\":\"You Know, for Search\"}";

    @Override
    public Collection<RestHandler> getRestHandlers(
        RestHandlersServices services, Supplier<DiscoveryNodes> nodes, Predicate<NodeFeature> features
    ) {
        return List.of(new Handler());
    }

    @Override
    public List<ActionHandler> getActions() {
        return List.of(new ActionHandler(MAIN, Main.class));
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
            return channel -> client.execute(MAIN, new Request(), new RestActionListener<>(channel) {
                @Override
                protected void processResponse(ActionResponse.Empty response) {
                    channel.sendResponse(new RestResponse(RestStatus.OK, "application/json", answer));
                }
            });
        }
    }

    public static class Request extends ActionRequest {
        @Override
        public ActionRequestValidationException validate() {
            return null;
        }
    }

    public static class Main extends TransportAction<Request, ActionResponse.Empty> {
        @Inject
        public Main(TransportService transport, ActionFilters filters) {
            super(MAIN.name(), filters, transport.getTaskManager(), EsExecutors.DIRECT_EXECUTOR_SERVICE);
        }

        @Override
        protected void doExecute(Task task, Request request, ActionListener<ActionResponse.Empty> listener) {
            listener.onResponse(ActionResponse.Empty.INSTANCE);
        }
    }
}
