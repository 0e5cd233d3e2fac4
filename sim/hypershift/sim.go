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
	"strings"
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
	// retryAfter is the delay before the first retry of a failed reconcile, in the time of the Sim's clock.
	retryAfter = 50 * time.Millisecond
	// callTimeout bounds one reconcile. It only limits how long the Sim waits for a broken API server.
	callTimeout = time.Minute
	workers     = 4

	// operatorNamespace is the namespace of HyperShift's operator.
	operatorNamespace = "hypershift"
)

// Sim is a simulated HyperShift with a simulated MetalLB and DPU operator. Its methods are safe for
// concurrent use.
type Sim struct {
	options Options
	client  client.Client
	cache   cache.Cache
	queue   workqueue.TypedRateLimitingInterface[key]
	ctx     context.Context //nolint:containedctx // it ends when the Sim is closed
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	// allocationMu is held while an address is allocated.
	allocationMu sync.Mutex

	mu sync.Mutex
	// dueTimes holds the end times of the delays that have started.
	dueTimes   map[delayKey]time.Time
	faults     []Fault
	violations map[Violation]bool
	problems   []error
	// emittedEvents are the events that were created, so that each event is created only once.
	emittedEvents map[string]bool

	// server is the Ignition server, nil without Options.Ignition. ignitionByPool holds what it serves for
	// each NodePool, ignitionRequests counts its requests, and rotations counts the changes of tokens.
	server                      *httptest.Server
	ignitionByPool              map[string]servedIgnition
	ignitionRequests, rotations int
}

// kind is the Kubernetes kind of a key.
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

// delayKey identifies a delay by the object that waits and the name of the delay.
type delayKey struct {
	uid  types.UID
	name string
}

func hypershiftGVK(name kind) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: string(name)}
}

func addressPoolGVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: string(kindAddressPool)}
}

// Start starts a Sim. Close stops it.
func Start(options Options) (*Sim, error) {
	if options.Config == nil {
		return nil, errors.New("start HyperShift: Options.Config is missing")
	}

	setDefaults(&options)

	s, err := newSim(options)
	if err != nil {
		return nil, fmt.Errorf("start HyperShift: %w", err)
	}

	if options.Ignition {
		s.startIgnitionServer()
	}

	if err := s.install(s.ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	if err := s.startWorkers(); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	return s, nil
}

func newSim(options Options) (*Sim, error) {
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
		return nil, fmt.Errorf("create client: %w", err)
	}

	informers, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("create cache: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())

	return &Sim{
		options: options, client: api, cache: informers, ctx: ctx, cancel: cancel,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](retryAfter, time.Second),
			workqueue.TypedRateLimitingQueueConfig[key]{Clock: options.Clock}),
		dueTimes: map[delayKey]time.Time{}, violations: map[Violation]bool{}, emittedEvents: map[string]bool{},
	}, nil
}

// Close stops the Sim. It does not delete the objects that the Sim has created.
func (s *Sim) Close() error {
	s.cancel()
	s.queue.ShutDown()
	s.wg.Wait()

	if s.server != nil {
		s.server.Close()
	}

	return nil
}

// install creates the objects of a HyperShift installation: its namespace, and the ConfigMap with the
// versions that it supports (support/supportedversion). It also creates MetalLB's namespace.
func (s *Sim) install(ctx context.Context) error {
	versions, err := json.Marshal(map[string][]string{"versions": s.options.Supported})
	if err != nil {
		return fmt.Errorf("encode supported versions: %w", err)
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
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}

	return nil
}

// managementKubeconfig returns an Options.Kubeconfig that makes the management cluster the hosted
// cluster.
func managementKubeconfig(config *rest.Config) func(string, string) ([]byte, error) {
	return func(string, string) ([]byte, error) { return kubeproc.Kubeconfig(config) }
}

// SetFaults replaces the faults, and reconciles all objects.
func (s *Sim) SetFaults(faults ...Fault) {
	s.mu.Lock()
	s.faults = slices.Clone(faults)
	s.mu.Unlock()

	s.enqueueAll()
}

// findFault returns the first fault of a kind for the object with the name, and false if there is none.
func (s *Sim) findFault(kind FaultKind, cluster string) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, f := range s.faults {
		if f.Kind == kind && (f.Cluster == "" || f.Cluster == cluster) {
			return f, true
		}
	}

	return Fault{}, false
}

func (s *Sim) hasFault(kind FaultKind, cluster string) bool {
	_, ok := s.findFault(kind, cluster)

	return ok
}

// Violations returns the violations of clients, except those that Forgive has removed.
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

// Forgive removes the violations so far whose Object ends with a text, because a test has caused them on purpose. The
// empty text removes all. The Sim does not report them again when it reconciles the same objects.
func (s *Sim) Forgive(object string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for violation := range s.violations {
		if strings.HasSuffix(violation.Object, object) {
			s.violations[violation] = false
		}
	}
}

func (s *Sim) recordViolation(k key, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	violation := Violation{Object: k.String(), Message: message}
	if _, known := s.violations[violation]; !known {
		s.violations[violation] = true
	}
}

// Problems returns the errors of the Sim itself. A test should fail if there is one.
func (s *Sim) Problems() []error {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.problems)
}

func (s *Sim) recordProblem(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.problems = append(s.problems, err)
}

// get reads a HostedCluster or NodePool. It returns nil if the object does not exist.
func (s *Sim) get(ctx context.Context, k key) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(hypershiftGVK(k.kind))

	err := s.client.Get(ctx, k.NamespacedName, object)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nil means that the object does not exist
	}

	if err != nil {
		return nil, fmt.Errorf("get %s: %w", k, err)
	}

	return object, nil
}
