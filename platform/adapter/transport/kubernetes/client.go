// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

const (
	defaultQPS     = 100
	defaultBurst   = 200
	defaultTimeout = 30 * time.Second
	managerPrefix  = "hyperfleet-"
	patchSuffix    = "-patch"
)

// Options of a Client.
type Options struct {
	// Config of the cluster; see Config. Required. Its QPS and Burst hold.
	Config *rest.Config
	// Adapter is the adapter's name: that of the field manager, and the value of the
	// label of what is cached. Required.
	Adapter string
	// System names the cluster in metrics. Default: kubernetes.
	System string
	// Timeout of one call. Default: 30s.
	Timeout time.Duration
	// Calls, if there, count and time the calls.
	Calls *metrics.Calls
	// Changed, if there, is told the resource id of an object that bears the adapter's label
	// when the object's status has changed and when it has gone, of the kinds that are read
	// Cached. It must not wait.
	Changed func(resourceID string, gone bool)
	// Log of trouble with watches. Default: none.
	Log *slog.Logger
	// Clock of pauses between tries of a read. Default: the real one.
	Clock clock.Clock
}

// Client reads and writes objects of one cluster.
type Client struct {
	manager string
	timeout time.Duration
	mapper  meta.RESTMapper
	dynamic dynamic.Interface
	cache   *store
}

var _ transport.Client = (*Client)(nil)

// Config reads how the cluster is reached: from the kubeconfig, else from the pod that
// the program runs in.
func Config(kubeConfigPath string, qps float32, burst int) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeConfigPath}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w; set clients.kubernetes.kube_config_path outside a cluster", kubeConfigPath, err)
	}

	config.QPS, config.Burst = cmp.Or(qps, defaultQPS), cmp.Or(burst, defaultBurst)

	return config, nil
}

// New makes a client. Nothing is asked of the cluster yet.
func New(options Options) (*Client, error) {
	options.System = cmp.Or(options.System, transport.Kubernetes)
	options.Timeout = cmp.Or(options.Timeout, defaultTimeout)
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})

	config := rest.CopyConfig(options.Config)
	kubeconfig.Bound(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		if options.Calls != nil {
			next = options.Calls.Transport(options.System, operation, next)
		}

		return retry.Transport(next, options.Clock, repeatable)
	})

	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make kubernetes transport: %w", err)
	}

	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make kubernetes transport: %w", err)
	}

	dynamicClient, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make kubernetes transport: %w", err)
	}

	cached, err := newStore(config, httpClient, mapper, options)
	if err != nil {
		return nil, err
	}

	return &Client{
		manager: managerPrefix + options.Adapter, timeout: options.Timeout, mapper: mapper, dynamic: dynamicClient, cache: cached,
	}, nil
}

// Run keeps the watches of cached reads until ctx ends. Before, and without it, all reads
// are live.
func (c *Client) Run(ctx context.Context) error { return c.cache.run(ctx) }

// Namespaced says whether objects of the kind live in namespaces.
func (c *Client) Namespaced(gvk schema.GroupVersionKind) bool {
	_, namespaced, _ := c.resource(gvk, "")

	return namespaced
}

// resource gives the calls for a kind: those of the namespace, if it has any.
func (c *Client) resource(gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, bool, error) {
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, false, err
	}

	all := c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return all, false, nil
	}

	return all.Namespace(namespace), true, nil
}

func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// operation names a call for the metrics.
func operation(request *http.Request) string {
	if kubeconfig.Watches(request) {
		return "watch"
	}

	return request.Method
}

// repeatable are reads. Writes are not repeated: the event is handled again.
func repeatable(request *http.Request) bool {
	return request.Method == http.MethodGet && !kubeconfig.Watches(request)
}
