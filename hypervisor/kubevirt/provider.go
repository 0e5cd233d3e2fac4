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
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// callTimeout bounds one call to the API server, with its repetitions.
	callTimeout  = 30 * time.Second
	defaultIDMin = 100000
	defaultIDMax = 199999
	// defaultNamespace is where machines are made if nothing is said.
	defaultNamespace = "default"
)

// Provider is the connection to one namespace with KubeVirt. It is safe for concurrent
// use.
type Provider struct {
	config  hypervisor.Config
	options hypervisor.Options
	id      identity
	clock   clock.WithTicker
	api     client.Client
	http    *http.Client
	rest    *rest.Config
	view    *view
	ids     *ids.Allocator[struct{}]
	busy    *locks
}

var _ hypervisor.Connection = (*Provider)(nil)

// Factory is the hypervisor.Factory of KubeVirt. A cluster without a kubeconfig is the
// one that local leads to, the operator's own.
func Factory(local *rest.Config) hypervisor.Factory {
	return func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
		p, err := New(config, options, local)
		if err != nil {
			return nil, err
		}

		return p, nil
	}
}

// New connects to a cluster; see Factory. It makes no call.
func New(config hypervisor.Config, options hypervisor.Options, local *rest.Config) (*Provider, error) {
	if config.Name == "" || options.OperatorUID == "" {
		return nil, fmt.Errorf("connect to cluster %q: its name and the operator's uid are needed to own machines", config.Name)
	}

	setDefaults(&config, &options)

	if config.IDMin < 1 || config.IDMin > config.IDMax {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "IDRangeInvalid",
			"vmIdRange %d to %d must hold a number, and none below 1", config.IDMin, config.IDMax)
	}

	kube, err := restConfig(config, local)
	if err != nil {
		return nil, err
	}

	p := &Provider{
		config: config, options: options, clock: options.Clock, rest: kube,
		id:  identity{hypervisor.Identity{OperatorUID: options.OperatorUID, Cluster: config.Name}},
		ids: ids.New[struct{}](config.IDMin, config.IDMax, options.Clock.Now, beginning(config)), busy: newLocks(),
	}

	if err := p.connect(); err != nil {
		return nil, fmt.Errorf("connect to cluster %q: %w", config.Name, err)
	}

	return p, nil
}

// beginning follows from an owner's uid, so that a new process finds the same id and a claim
// made again under an old name does not.
func beginning(config hypervisor.Config) func(owner string) int {
	size := config.IDMax - config.IDMin + 1

	return func(owner string) int {
		h := fnv.New64a()
		_, _ = h.Write([]byte(owner))

		return int(h.Sum64() % uint64(size)) //nolint:gosec // below size, which is an int
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

// connect makes the clients.
func (p *Provider) connect() error {
	// The API server's own priority and fairness bounds us.
	p.rest.QPS = -1
	p.rest.Timeout = 0
	p.rest.UserAgent = "hyperfleet"

	if p.options.Transport != nil {
		p.rest.Wrap(p.options.Transport)
	}

	kubeconfig.Bound(p.rest)
	p.rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
		reads := func(r *http.Request) bool { return r.Method == http.MethodGet && !kubeconfig.Watches(r) }

		return retry.Transport(next, p.clock, reads)
	})

	scheme, err := newScheme()
	if err != nil {
		return err
	}

	if p.http, err = rest.HTTPClientFor(p.rest); err != nil {
		return fmt.Errorf("make transport: %w", err)
	}

	// A redirect would carry the credentials elsewhere.
	p.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	mapper := newMapper()

	p.api, err = client.New(p.rest, client.Options{HTTPClient: p.http, Scheme: scheme, Mapper: mapper})
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}

	p.view = newView(p, scheme, mapper)

	return nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, storagev1.AddToScheme, authorizationv1.AddToScheme, virtv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("add kinds: %w", err)
		}
	}

	return scheme, nil
}

// Kinds that are read without types of their own.
func dataSourceKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "DataSource"}
}

func attachmentKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}
}

// newMapper knows the kinds in use, so that the API server need not be asked.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)

	for _, kind := range []string{"Secret", "PersistentVolumeClaim", "Pod"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	for _, kind := range []string{"VirtualMachine", "VirtualMachineInstance", "KubeVirt"} {
		m.Add(virtv1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	m.Add(dataSourceKind(), meta.RESTScopeNamespace)
	m.AddSpecific(attachmentKind(),
		attachmentKind().GroupVersion().WithResource("network-attachment-definitions"),
		attachmentKind().GroupVersion().WithResource("network-attachment-definition"), meta.RESTScopeNamespace)

	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(storagev1.SchemeGroupVersion.WithKind("StorageClass"), meta.RESTScopeRoot)
	m.Add(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), meta.RESTScopeRoot)

	return m
}

// Close stops the watches and waits for them. Machines stay.
func (p *Provider) Close() {
	p.view.close()
	p.http.CloseIdleConnections()
}

// in bounds a call.
func (p *Provider) in(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTimeout)
}

func (p *Provider) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: p.config.Namespace, Name: name}
}
