// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	// retryAfter is how soon something that failed or has to wait is looked at again, in
	// the Sim's time.
	retryAfter = 50 * time.Millisecond
	// callTimeout bounds what is done to one object at once. It decides nothing but how
	// long a broken API server is waited for.
	callTimeout = time.Minute
	workers     = 4

	// operatorNamespace is HyperShift's own.
	operatorNamespace = "hypershift"
)

// Sim is a simulated HyperShift with its neighbours. Its methods are safe for concurrent
// use.
type Sim struct {
	options Options
	client  client.Client
	view    cache.Cache
	queue   workqueue.TypedRateLimitingInterface[key]
	ctx     context.Context //nolint:containedctx // the Sim's life
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	// giving is held while an address is given.
	giving sync.Mutex

	mu sync.Mutex
	// due holds when a delay that has begun is over.
	due        map[dueKey]time.Time
	faults     []Fault
	violations map[Violation]bool
	problems   []error
	// told are the events that were written, so that each is written once.
	told map[string]bool

	// server of ignition, if there is one; what it serves by NodePool, how often it was asked,
	// and how often tokens were changed.
	server             *httptest.Server
	ignitions          map[string]ignition
	fetched, rotations int
}

// kind is what a key is of.
type kind string

const (
	kindHostedCluster kind = "HostedCluster"
	kindNodePool      kind = "NodePool"
	kindService       kind = "Service"
	kindAddressPool   kind = "IPAddressPool"
)

type key struct {
	kind kind
	types.NamespacedName
}

func (k key) String() string { return string(k.kind) + " " + k.NamespacedName.String() }

// dueKey names a delay: what waits, and for what.
type dueKey struct {
	uid  types.UID
	what string
}

func hypershiftKind(name kind) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: string(name)}
}

func metallbKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: string(kindAddressPool)}
}

// Start starts a Sim; Close ends it.
func Start(options Options) (*Sim, error) {
	if options.Config == nil {
		return nil, errors.New("start HyperShift: it needs an API server")
	}

	setDefaults(&options)

	s, err := build(options)
	if err != nil {
		return nil, fmt.Errorf("start HyperShift: %w", err)
	}

	if options.Ignition {
		s.serveIgnition()
	}

	if err := s.install(s.ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	if err := s.run(); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	return s, nil
}

func build(options Options) (*Sim, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("add kinds: %w", err)
	}

	config := rest.CopyConfig(options.Config)
	config.QPS = -1
	config.Timeout = 0
	config.WarningHandler = rest.NoWarnings{}

	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}

	view, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make watches: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())

	return &Sim{
		options: options, client: api, view: view, ctx: ctx, cancel: cancel,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](retryAfter, time.Second),
			workqueue.TypedRateLimitingQueueConfig[key]{Clock: options.Clock}),
		due: map[dueKey]time.Time{}, violations: map[Violation]bool{}, told: map[string]bool{},
	}, nil
}

// Close ends the Sim. What it has made stays.
func (s *Sim) Close() error {
	s.cancel()
	s.queue.ShutDown()
	s.wg.Wait()

	if s.server != nil {
		s.server.Close()
	}

	return nil
}

// install makes what HyperShift shows of itself: its namespace, and the versions that it
// supports (support/supportedversion).
func (s *Sim) install(ctx context.Context) error {
	versions, err := json.Marshal(map[string][]string{"versions": s.options.Supported})
	if err != nil {
		return fmt.Errorf("write supported versions: %w", err)
	}

	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operatorNamespace}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: operatorNamespace, Name: "supported-versions",
				Labels: map[string]string{"hypershift.openshift.io/supported-versions": "true"},
			},
			Data: map[string]string{"supported-versions": string(versions), "server-version": "simulated"},
		},
	}

	if !s.options.WithoutMetalLB {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.options.MetalLBNamespace}})
	}

	for _, object := range objects {
		err := s.client.Create(ctx, object)
		if apierrors.IsAlreadyExists(err) {
			if _, ok := object.(*corev1.ConfigMap); ok {
				err = s.client.Update(ctx, object)
			} else {
				err = nil
			}
		}

		if err != nil {
			return fmt.Errorf("make %T %s: %w", object, object.GetName(), err)
		}
	}

	return nil
}

// ownKubeconfig makes the API server itself the hosted cluster.
func ownKubeconfig(config *rest.Config) func(string, string) ([]byte, error) {
	return func(string, string) ([]byte, error) { return kubeproc.Kubeconfig(config) }
}

// SetFaults changes what goes wrong.
func (s *Sim) SetFaults(faults ...Fault) {
	s.mu.Lock()
	s.faults = slices.Clone(faults)
	s.mu.Unlock()

	s.all()
}

// fault gives the first fault of a kind for a cluster.
func (s *Sim) fault(kind FaultKind, cluster string) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, f := range s.faults {
		if f.Kind == kind && (f.Cluster == "" || f.Cluster == cluster) {
			return f, true
		}
	}

	return Fault{}, false
}

func (s *Sim) has(kind FaultKind, cluster string) bool {
	_, ok := s.fault(kind, cluster)

	return ok
}

// Violations are what HyperShift or MetalLB would not have taken.
func (s *Sim) Violations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()

	all := make([]Violation, 0, len(s.violations))
	for violation, counts := range s.violations {
		if !counts {
			continue
		}

		all = append(all, violation)
	}

	return all
}

// Forgive takes back the violations so far: those that a test made on purpose. They stay
// forgiven when the Sim looks at the same objects again.
func (s *Sim) Forgive() {
	s.mu.Lock()
	defer s.mu.Unlock()

	for violation := range s.violations {
		s.violations[violation] = false
	}
}

func (s *Sim) violation(k key, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	violation := Violation{Object: k.String(), What: what}
	if _, known := s.violations[violation]; !known {
		s.violations[violation] = true
	}
}

// Problems are errors of the Sim's own: none in a test that works.
func (s *Sim) Problems() []error {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.problems)
}

func (s *Sim) problem(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.problems = append(s.problems, err)
}

// get reads an object of HyperShift's; nil is none.
func (s *Sim) get(ctx context.Context, k key) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(hypershiftKind(k.kind))

	err := s.client.Get(ctx, k.NamespacedName, object)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}

	if err != nil {
		return nil, fmt.Errorf("get %s: %w", k, err)
	}

	return object, nil
}
