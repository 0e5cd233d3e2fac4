// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

const (
	defaultQPS     = 100
	defaultBurst   = 200
	defaultTimeout = 30 * time.Second
	// discoveryTimeout limits the discovery of a kind, whose calls take no context.
	discoveryTimeout = 10 * time.Second
	// maxRefused is how long reads use the index of a watch while the API server refuses its connections or is too busy.
	maxRefused    = time.Minute
	managerPrefix = "hyperfleet-"
	patchSuffix   = "-patch"
)

// Options configure a Client.
type Options struct {
	// Config is the configuration of the cluster, for example from LoadConfig. The client uses its QPS
	// and Burst. Required.
	Config *rest.Config
	// Adapter is the name of the adapter. The field manager contains the name, and the cache contains
	// the objects whose adapter label has the name. Required.
	Adapter string
	// System is the name of the cluster in metrics. Default: kubernetes.
	System string
	// Timeout is the timeout of one call. Default: 30s.
	Timeout time.Duration
	// Calls, if set, counts and times the calls.
	Calls *metrics.CallMetrics
	// OnChange, if set, is called with the resource ID of an object with the adapter's label when the
	// object has changed (Differ), and when the object was deleted. It is called only for kinds that
	// were read with Cached. It must not block.
	OnChange func(resourceID string, deleted bool)
	// Differ reports whether two states of an object differ in what the adapter reads. Default: their statuses differ.
	Differ func(before, after *unstructured.Unstructured) bool
	// OnUnread, if set, is called like OnChange when only a part of the status has changed that the adapter does not read.
	OnUnread func(resourceID string)
	// Log is the logger for errors of watches. Default: no logs.
	Log *slog.Logger
	// Clock is the clock of the delays between attempts of a read. Default: the real clock.
	Clock clock.Clock
}

// Client reads and writes objects of one cluster.
type Client struct {
	adapter string
	manager string
	system  string
	// ready calls the API server's readiness endpoint.
	ready   rest.Interface
	timeout time.Duration
	mapper  meta.RESTMapper
	// mappings are the resources that mapper has found, by their kind.
	mappings  sync.Map
	discovery *discovery.DiscoveryClient
	dynamic   dynamic.Interface
	// quiet does not log the server's warnings, for example about deprecated kinds.
	quiet dynamic.Interface
	cache *store
}

var _ transport.Client = (*Client)(nil)

// LoadConfig loads the configuration of the cluster from the kubeconfig, or from the pod that the program
// runs in if the path is empty. A qps or burst of 0 means the default, 100 and 200.
func LoadConfig(kubeConfigPath string, qps float32, burst int) (*rest.Config, error) {
	config, err := credential.LoadKubeconfig(kubeConfigPath)
	if err != nil {
		return nil, fmt.Errorf("%w; outside a cluster, set clients.kubernetes.kube_config_path", err)
	}

	config.QPS, config.Burst = cmp.Or(qps, defaultQPS), cmp.Or(burst, defaultBurst)

	return config, nil
}

// New creates a client. It sends no requests to the cluster.
func New(options Options) (*Client, error) {
	options.System = cmp.Or(options.System, transport.Kubernetes)
	options.Timeout = cmp.Or(options.Timeout, defaultTimeout)
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})

	config := rest.CopyConfig(options.Config)
	credential.LimitResponses(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		if options.Calls != nil {
			next = options.Calls.WrapTransport(options.System, operationName, next)
		}

		return retry.NewTransport(endRefusedWatches(next, options.Clock), options.Clock, isRetryable)
	})

	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create kubernetes transport: %w", err)
	}

	discoveryHTTP := *httpClient
	discoveryHTTP.Timeout = discoveryTimeout

	mapper, err := apiutil.NewDynamicRESTMapper(config, &discoveryHTTP)
	if err != nil {
		return nil, fmt.Errorf("create kubernetes transport: %w", err)
	}

	dynamicClient, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create kubernetes transport: %w", err)
	}

	quietConfig := rest.CopyConfig(config)
	quietConfig.WarningHandler = rest.NoWarnings{}

	quiet, err := dynamic.NewForConfigAndClient(quietConfig, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create kubernetes transport: %w", err)
	}

	cached, err := newStore(config, httpClient, mapper, options)
	if err != nil {
		return nil, err
	}

	discovered, err := discovery.NewDiscoveryClientForConfigAndClient(config, &discoveryHTTP)
	if err != nil {
		return nil, fmt.Errorf("create kubernetes transport: %w", err)
	}

	return &Client{
		adapter: options.Adapter, system: options.System, ready: discovered.RESTClient(), manager: managerPrefix + options.Adapter,
		timeout: options.Timeout, mapper: mapper, discovery: discovered, dynamic: dynamicClient, quiet: quiet, cache: cached,
	}, nil
}

// endRefusedWatches returns a transport that makes a watch fail if the API server has refused its connections, or has been
// too busy for it, for maxRefused. The watch would otherwise be repeated forever, and its index would count as current.
func endRefusedWatches(next http.RoundTripper, clk clock.PassiveClock) http.RoundTripper {
	var refusedSince sync.Map // by the path of the kind

	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if !credential.IsWatch(r) {
			return response, err
		}

		isBusy := err == nil && response.StatusCode == http.StatusTooManyRequests
		if !isBusy && !errors.Is(err, syscall.ECONNREFUSED) {
			refusedSince.Delete(r.URL.Path)

			return response, err
		}

		now := clk.Now()
		first, _ := refusedSince.LoadOrStore(r.URL.Path, now)
		since, _ := first.(time.Time)

		switch refused := now.Sub(since); {
		case refused < maxRefused:
			return response, err
		case isBusy:
			_ = response.Body.Close()

			return nil, fmt.Errorf("status %d for %s", response.StatusCode, refused)
		default:
			return nil, fmt.Errorf("no connection for %s: %v", refused, err) //nolint:errorlint // the watch would repeat it
		}
	})
}

// Run runs the watches of cached reads until ctx ends. All reads are live while Run is not running.
func (c *Client) Run(ctx context.Context) error { return c.cache.run(ctx) }

// CheckReady returns why the cluster cannot be used: its API server does not answer, rejects the adapter's
// credentials, or says that it is not ready, for example because it does not reach etcd.
func (c *Client) CheckReady(ctx context.Context) error {
	body, err := c.ready.Get().AbsPath("/readyz").MaxRetries(0).DoRaw(ctx)

	switch {
	case err == nil, apierrors.IsForbidden(err), apierrors.IsNotFound(err): // the endpoint is not open to everybody
		return nil
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("cluster %s rejects the credentials of the adapter: renew them: %w", c.system, err)
	case len(body) > 0:
		return fmt.Errorf("cluster %s is not ready: %w: %s", c.system, err, failedChecks(body))
	default:
		return fmt.Errorf("cluster %s does not answer: %w", c.system, err)
	}
}

// failedChecks returns the names of the checks that failed, from a response of /readyz.
func failedChecks(body []byte) string {
	var failed []string

	for line := range strings.Lines(string(body)) {
		if name, isFailed := strings.CutPrefix(line, "[-]"); isFailed {
			name, _, _ = strings.Cut(name, " ")
			failed = append(failed, name)
		}
	}

	return strings.Join(failed, ", ")
}

// IsNamespaced reports whether objects of the kind are in namespaces.
func (c *Client) IsNamespaced(gvk schema.GroupVersionKind) bool {
	_, isNamespaced, _ := c.resourceFor(context.Background(), gvk, "")

	return isNamespaced
}

// resourceFor returns the client for a kind and reports whether the kind is namespaced. The client of a
// namespaced kind is limited to the namespace.
func (c *Client) resourceFor(
	ctx context.Context, gvk schema.GroupVersionKind, namespace string,
) (dynamic.ResourceInterface, bool, error) {
	mapping, err := c.mappingOf(ctx, gvk)
	if err != nil {
		return nil, false, err
	}

	all := c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return all, false, nil
	}

	return all.Namespace(namespace), true, nil
}

// mappingOf returns the resource of a kind. If ctx ends, it does not wait for the discovery, which takes no
// context.
func (c *Client) mappingOf(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if known, ok := c.mappings.Load(gvk); ok {
		mapping, _ := known.(*meta.RESTMapping)

		return mapping, nil
	}

	type result struct {
		mapping *meta.RESTMapping
		err     error
	}

	found := make(chan result, 1)

	go func() {
		mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		found <- result{mapping, err}
	}()

	select {
	case r := <-found:
		if r.err == nil {
			c.mappings.Store(gvk, r.mapping)
		}

		return r.mapping, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("discover kind %s: %w", gvk.Kind, context.Cause(ctx))
	}
}

func (c *Client) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// operation returns the name of a call in metrics.
func operationName(request *http.Request) string {
	if credential.IsWatch(request) {
		return "watch"
	}

	return request.Method
}

// isRetryable reports whether a request is a read, which can be retried. Writes are not retried here,
// because the adapter handles the event again.
func isRetryable(request *http.Request) bool {
	return request.Method == http.MethodGet && !credential.IsWatch(request)
}
