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
	// callTimeout bounds one pass over a work.
	callTimeout = time.Minute
	retryAfter  = 100 * time.Millisecond
)

// Agent is the work agent of one cluster. Its methods may be called at once.
type Agent struct {
	options Options
	works   dynamic.ResourceInterface
	applied dynamic.ResourceInterface
	spoke   dynamic.Interface
	mapper  meta.RESTMapper
	// hub tells hubs apart in the names of AppliedManifestWorks.
	hub    string
	wake   chan struct{}
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex
	violations map[Violation]bool
	problems   []error
}

func worksResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "work.open-cluster-management.io", Version: "v1", Resource: "manifestworks"}
}

func appliedResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "work.open-cluster-management.io", Version: "v1", Resource: "appliedmanifestworks"}
}

// Start starts an agent; Close ends it.
func Start(options Options) (*Agent, error) {
	if options.Hub == nil || options.Cluster == "" {
		return nil, errors.New("start work agent: it needs a hub and the name of its cluster")
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
		options: options, works: hub.Resource(worksResource()).Namespace(options.Cluster),
		applied: spoke.Resource(appliedResource()), spoke: spoke, mapper: mapper,
		hub: hex.EncodeToString(sum[:]), wake: make(chan struct{}, 1), violations: map[Violation]bool{},
	}, nil
}

// Close ends the agent. What it has brought to the spoke stays.
func (a *Agent) Close() {
	a.cancel()
	a.wg.Wait()
}

// Violations are what the webhook would have refused.
func (a *Agent) Violations() []Violation {
	a.mu.Lock()
	defer a.mu.Unlock()

	all := make([]Violation, 0, len(a.violations))
	for violation := range a.violations {
		all = append(all, violation)
	}

	return all
}

// Problems are errors of the agent's own: none in a test that works.
func (a *Agent) Problems() []error {
	a.mu.Lock()
	defer a.mu.Unlock()

	return append([]error(nil), a.problems...)
}

func (a *Agent) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// watch wakes the agent when a work changes.
func (a *Agent) watch(ctx context.Context) {
	for ctx.Err() == nil {
		watcher, err := a.works.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			a.pause(ctx, retryAfter)

			continue
		}

		a.nudge()

		for range watcher.ResultChan() {
			a.nudge()
		}

		watcher.Stop()
	}
}

func (a *Agent) run(ctx context.Context) {
	ticker := a.options.Clock.NewTicker(a.options.Interval)
	defer ticker.Stop()

	for {
		a.all(ctx)

		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-a.wake:
		}
	}
}

func (a *Agent) pause(ctx context.Context, wait time.Duration) {
	timer := a.options.Clock.NewTimer(wait)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

func (a *Agent) all(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	list, err := a.works.List(ctx, metav1.ListOptions{})
	if err != nil {
		a.note(ctx, fmt.Errorf("list works: %w", err))

		return
	}

	for i := range list.Items {
		work := &list.Items[i]
		if err := a.one(ctx, work); err != nil {
			a.note(ctx, fmt.Errorf("work %s: %w", work.GetName(), err))
		}
	}
}

// note keeps errors that are nobody's doing: what changes under the agent's hands it does
// again.
func (a *Agent) note(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, "NamespaceTerminating") {
		return
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.problems = append(a.problems, err)
}

func (a *Agent) one(ctx context.Context, work *unstructured.Unstructured) error {
	if work.GetDeletionTimestamp() != nil {
		return a.remove(ctx, work)
	}

	if refused := Validate(work); refused != nil {
		a.mu.Lock()
		defer a.mu.Unlock()

		a.violations[Violation{Work: work.GetName(), What: refused.Error()}] = true

		return nil
	}

	return a.bring(ctx, work)
}
