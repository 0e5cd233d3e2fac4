// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/listcache"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// callTimeout limits one call to the API server, including its retries.
	callTimeout  = 30 * time.Second
	defaultIDMin = 100000
	defaultIDMax = 199999
	// machineLockCount is the number of locks that machines share. With so many, two machines rarely wait
	// for each other.
	machineLockCount = 1024
	// defaultNamespace is the namespace of machines if the config names none.
	defaultNamespace = "default"
)

// Provider is the connection to one namespace of a cluster with KubeVirt. It is safe for concurrent
// use.
type Provider struct {
	config       hypervisor.Config
	options      hypervisor.Options
	identity     identity
	clock        clock.WithTicker
	api          client.Client
	http         *http.Client
	rest         *rest.Config
	cache        *machineCache
	ids          *ids.Allocator[struct{}]
	machineLocks keymutex.KeyMutex
	occupancy    listcache.Cache[occupancy]
}

var _ hypervisor.Connection = (*Provider)(nil)

// Factory returns the hypervisor.Factory of KubeVirt. A connection without a kubeconfig uses local,
// which is the configuration of the operator's own cluster.
func Factory(local *rest.Config) hypervisor.Factory {
	return func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
		p, err := New(config, options, local)
		if err != nil {
			return nil, err
		}

		return p, nil
	}
}

// New returns a provider for the cluster; see Factory. It makes no call to the API server.
func New(config hypervisor.Config, options hypervisor.Options, local *rest.Config) (*Provider, error) {
	if config.Name == "" || options.OperatorUID == "" {
		return nil, fmt.Errorf("connect to cluster %q: the ownership of machines needs the cluster's name and the operator's UID",
			config.Name)
	}

	setDefaults(&config, &options)

	if config.IDMin < 1 || config.IDMin > config.IDMax {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "IDRangeInvalid",
			"validate vmIdRange: the range %d to %d must start at 1 or above and must not be empty", config.IDMin, config.IDMax)
	}

	kube, err := newRESTConfig(config, local)
	if err != nil {
		return nil, err
	}

	p := &Provider{
		config: config, options: options, clock: options.Clock, rest: kube,
		identity:     identity{hypervisor.Identity{OperatorUID: options.OperatorUID, Cluster: config.Name}},
		ids:          ids.New[struct{}](config.IDMin, config.IDMax, options.Clock.Now, newSearchStart(config)),
		machineLocks: keymutex.NewHashed(machineLockCount),
	}

	p.occupancy = listcache.Cache[occupancy]{List: p.readOccupancy, Timeout: callTimeout, Clock: options.Clock}

	if err := p.createClients(); err != nil {
		return nil, fmt.Errorf("connect to cluster %q: %w", config.Name, err)
	}

	return p, nil
}

// newSearchStart returns a function that computes, from a claim's UID, the offset at which the search for
// a free id starts. The search is therefore repeatable: a new process finds the same id for a claim. A new
// claim with the name of a deleted claim has another UID and gets another id.
func newSearchStart(config hypervisor.Config) func(claimUID string) int {
	size := config.IDMax - config.IDMin + 1

	return func(claimUID string) int {
		h := fnv.New64a()
		_, _ = h.Write([]byte(claimUID))

		return int(h.Sum64() % uint64(size)) //nolint:gosec // the result is less than size, which is an int
	}
}

func setDefaults(config *hypervisor.Config, options *hypervisor.Options) {
	if config.IDMin == 0 && config.IDMax == 0 {
		config.IDMin, config.IDMax = defaultIDMin, defaultIDMax
	}

	if config.Namespace == "" {
		config.Namespace = defaultNamespace
	}

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	if options.Wake == nil {
		options.Wake = func(hypervisor.Owner) {}
	}
}

// createClients creates the HTTP client, the API client and the machine cache.
func (p *Provider) createClients() error {
	// API Priority and Fairness of the API server limits the requests, so the client does not.
	p.rest.QPS = -1
	p.rest.Timeout = 0
	p.rest.UserAgent = "hyperfleet"

	if p.options.WrapTransport != nil {
		p.rest.Wrap(p.options.WrapTransport)
	}

	credential.LimitResponses(p.rest)
	p.rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
		isRead := func(r *http.Request) bool { return r.Method == http.MethodGet && !credential.IsWatch(r) }

		return retry.NewTransport(next, p.clock, isRead)
	})

	scheme, err := newScheme()
	if err != nil {
		return err
	}

	if p.http, err = rest.HTTPClientFor(p.rest); err != nil {
		return fmt.Errorf("create HTTP client: %w", err)
	}

	// Following a redirect would send the credentials to another server.
	p.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	mapper := newMapper()

	p.api, err = client.New(p.rest, client.Options{HTTPClient: p.http, Scheme: scheme, Mapper: mapper})
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}

	p.cache = newMachineCache(p, scheme, mapper)

	return nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, storagev1.AddToScheme, authorizationv1.AddToScheme, virtv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("add kinds to scheme: %w", err)
		}
	}

	return scheme, nil
}

// dataSourceGVK is the kind of a DataSource, which the provider reads as unstructured object.
func dataSourceGVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "DataSource"}
}

// attachmentGVK is the kind of a NetworkAttachmentDefinition, which the provider reads as unstructured
// object.
func attachmentGVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}
}

// newMapper returns a mapper with all kinds that the provider uses, so that no discovery request is
// necessary.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)

	for _, kind := range []string{"Secret", "PersistentVolumeClaim", "Pod"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	// A cache of one namespace looks up the kinds of lists as well.
	for _, kind := range []string{"VirtualMachine", "VirtualMachineList", "VirtualMachineInstance", "KubeVirt"} {
		m.Add(virtv1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	m.Add(dataSourceGVK(), meta.RESTScopeNamespace)
	m.AddSpecific(attachmentGVK(),
		attachmentGVK().GroupVersion().WithResource("network-attachment-definitions"),
		attachmentGVK().GroupVersion().WithResource("network-attachment-definition"), meta.RESTScopeNamespace)

	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(storagev1.SchemeGroupVersion.WithKind("StorageClass"), meta.RESTScopeRoot)
	m.Add(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), meta.RESTScopeRoot)

	return m
}

// Close stops the watches and waits until they have stopped. It does not change machines.
func (p *Provider) Close() {
	p.cache.close()
	p.http.CloseIdleConnections()
}

// withCallTimeout returns a context that ends after callTimeout.
func (p *Provider) withCallTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTimeout)
}

func (p *Provider) objectKey(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: p.config.Namespace, Name: name}
}
