// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	// callTimeout bounds one reconcile of all ManifestWorks.
	callTimeout = time.Minute
	retryAfter  = 100 * time.Millisecond
)

// Agent is the work agent of one cluster. Its methods are safe for concurrent use.
type Agent struct {
	options Options
	works   dynamic.ResourceInterface
	applied dynamic.ResourceInterface
	spoke   dynamic.Interface
	mapper  meta.RESTMapper
	// hubHash identifies the hub in the names of AppliedManifestWorks.
	hubHash string
	wake    chan struct{}
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu         sync.Mutex
	violations map[Violation]bool
	problems   []error
}

func manifestWorksGVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "work.open-cluster-management.io", Version: "v1", Resource: "manifestworks"}
}

func appliedManifestWorksGVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "work.open-cluster-management.io", Version: "v1", Resource: "appliedmanifestworks"}
}

// Start starts an agent. Close stops it.
func Start(options Options) (*Agent, error) {
	if options.Hub == nil || options.Cluster == "" {
		return nil, errors.New("start work agent: Options.Hub or Options.Cluster is missing")
	}

	if options.Spoke == nil {
		options.Spoke = options.Hub
	}

	if options.Interval == 0 {
		options.Interval = defaultInterval
	}

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	a, err := newAgent(options)
	if err != nil {
		return nil, fmt.Errorf("start work agent: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel

	a.wg.Go(func() { a.watch(ctx) })
	a.wg.Go(func() { a.run(ctx) })

	return a, nil
}

func newAgent(options Options) (*Agent, error) {
	hub, err := dynamic.NewForConfig(options.Hub)
	if err != nil {
		return nil, err
	}

	spoke, err := dynamic.NewForConfig(options.Spoke)
	if err != nil {
		return nil, err
	}

	httpClient, err := rest.HTTPClientFor(options.Spoke)
	if err != nil {
		return nil, err
	}

	mapper, err := apiutil.NewDynamicRESTMapper(options.Spoke, httpClient)
	if err != nil {
		return nil, err
	}

	sum := sha256.Sum256([]byte(options.Hub.Host))

	return &Agent{
		options: options, works: hub.Resource(manifestWorksGVR()).Namespace(options.Cluster),
		applied: spoke.Resource(appliedManifestWorksGVR()), spoke: spoke, mapper: mapper,
		hubHash: hex.EncodeToString(sum[:]), wake: make(chan struct{}, 1), violations: map[Violation]bool{},
	}, nil
}

// Close stops the agent. It does not delete the objects that the agent has applied on the spoke.
func (a *Agent) Close() {
	a.cancel()
	a.wg.Wait()
}

// Violations returns the ManifestWorks that the hub's webhook would have rejected.
func (a *Agent) Violations() []Violation {
	a.mu.Lock()
	defer a.mu.Unlock()

	all := make([]Violation, 0, len(a.violations))
	for violation := range a.violations {
		all = append(all, violation)
	}

	return all
}

// Problems returns the errors of the agent itself. A test should fail if there is one.
func (a *Agent) Problems() []error {
	a.mu.Lock()
	defer a.mu.Unlock()

	return append([]error(nil), a.problems...)
}

func (a *Agent) wakeUp() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// watch triggers a reconcile whenever a ManifestWork changes.
func (a *Agent) watch(ctx context.Context) {
	for ctx.Err() == nil {
		watcher, err := a.works.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			a.sleep(ctx, retryAfter)

			continue
		}

		a.wakeUp()

		for range watcher.ResultChan() {
			a.wakeUp()
		}

		watcher.Stop()
	}
}

func (a *Agent) run(ctx context.Context) {
	ticker := a.options.Clock.NewTicker(a.options.Interval)
	defer ticker.Stop()

	for {
		a.reconcileAll(ctx)

		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-a.wake:
		}
	}
}

func (a *Agent) sleep(ctx context.Context, delay time.Duration) {
	timer := a.options.Clock.NewTimer(delay)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

func (a *Agent) reconcileAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	list, err := a.works.List(ctx, metav1.ListOptions{})
	if err != nil {
		a.recordProblem(ctx, fmt.Errorf("list works: %w", err))

		return
	}

	for i := range list.Items {
		work := &list.Items[i]
		if err := a.reconcile(ctx, work); err != nil {
			a.recordProblem(ctx, fmt.Errorf("work %s: %w", work.GetName(), err))
		}
	}
}

// recordProblem records an error of the agent. It ignores errors that concurrent changes of the same
// objects cause, because the agent retries after them.
func (a *Agent) recordProblem(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, "NamespaceTerminating") {
		return
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.problems = append(a.problems, err)
}

func (a *Agent) reconcile(ctx context.Context, work *unstructured.Unstructured) error {
	if work.GetDeletionTimestamp() != nil {
		return a.finalizeWork(ctx, work)
	}

	if err := Validate(work); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()

		a.violations[Violation{Work: work.GetName(), Message: err.Error()}] = true

		return nil
	}

	return a.applyWork(ctx, work)
}
