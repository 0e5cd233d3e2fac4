// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	// defaultInterval is the default of KindWaiter.Interval.
	defaultInterval = 10 * time.Second
	// callTimeout is the timeout of one discovery call.
	callTimeout = 10 * time.Second
)

// KindWaiter starts the controllers of an area when the API server serves all kinds that the area needs. An area
// is a part of the operator with its own controllers, such as runners or networking. KindWaiter is a
// manager.Runnable that runs on every replica.
type KindWaiter struct {
	// Area is the name of the area in the log.
	Area string
	// Kinds are the kinds that the area needs.
	Kinds []schema.GroupVersionKind
	// FindMissing returns what the area needs in addition to Kinds and the API server does not serve, each as a
	// sentence. It may be nil.
	FindMissing func(ctx context.Context) ([]string, error)
	// Manager runs the area's controllers. Required.
	Manager ctrl.Manager
	// SetupWithManager is called once, when the API server serves the kinds. It adds the controllers
	// to mgr. If it returns an error, none of them is started, and Start returns the error, which
	// stops the process.
	SetupWithManager func(ctx context.Context, mgr ctrl.Manager) error
	// Interval is the time between two checks. Default: 10 seconds.
	Interval time.Duration
	Clock    clock.WithTicker
	Log      *slog.Logger

	mu sync.Mutex
	// missing is what the last check found missing. isStarted is true once the controllers have been added.
	missing   []string
	isStarted bool
	// readyzChecks are the readiness checks of the area.
	readyzChecks map[string]healthz.Checker
}

// CheckReady is a readiness check of the process. It fails while the controllers are not started, and says what is
// missing. Then it runs the readiness checks of the area, because a running manager accepts no new checks.
func (w *KindWaiter) CheckReady(r *http.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	if !w.isStarted {
		return fmt.Errorf("%s waits: %s", w.Area, strings.Join(w.missing, "; "))
	}

	for name, check := range w.readyzChecks {
		if err := check(r); err != nil {
			return fmt.Errorf("check %s: %w", name, err)
		}
	}

	return nil
}

// NeedLeaderElection returns false: every replica waits for the kinds, so that each can become the
// leader.
func (w *KindWaiter) NeedLeaderElection() bool { return false }

// Start waits for the kinds and then starts the controllers. It returns nil if ctx ends before.
func (w *KindWaiter) Start(ctx context.Context) error {
	cfg := rest.CopyConfig(w.Manager.GetConfig())
	cfg.Timeout = callTimeout

	api, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("wait for kinds of %s: %w", w.Area, err)
	}

	hasLogged := false

	for {
		missing, err := w.check(ctx, api)

		switch {
		case ctx.Err() != nil: // it ends below
		case err != nil:
			w.Log.WarnContext(ctx, "checking for the kinds that an area needs failed, retrying",
				"area", w.Area, "error", err)
		case len(missing) == 0:
			w.Log.InfoContext(ctx, "area starts", "area", w.Area)

			return runWithContext(ctx, func() error { return w.setUp(ctx) })
		case !hasLogged:
			w.Log.Log(ctx, w.logLevel(), "area is off until the kinds that it needs are installed",
				"area", w.Area, "missing", strings.Join(missing, ", "))

			hasLogged = true
		}

		select {
		case <-ctx.Done():
			return nil
		case <-w.Clock.After(w.interval()):
		}
	}
}

// check returns what findMissing returns, and ends with ctx. Discovery calls take no context, and last longer than the
// operator may take to end if the API server does not respond.
func (w *KindWaiter) check(ctx context.Context, api discovery.ServerResourcesInterface) ([]string, error) {
	var missing []string

	err := runWithContext(ctx, func() error {
		var err error

		missing, err = w.findMissing(ctx, api)

		return err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err() // findMissing may still run
	}

	return missing, err
}

// runWithContext runs a function that may not end with ctx, and returns its error, or nil if ctx ends before.
func runWithContext(ctx context.Context, run func() error) error {
	done := make(chan error, 1)

	go func() { done <- run() }()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return nil
	}
}

// findMissing returns what the area needs and the API server does not serve.
func (w *KindWaiter) findMissing(ctx context.Context, api discovery.ServerResourcesInterface) ([]string, error) {
	missing, err := missingKinds(api, w.Kinds)
	if err == nil && w.FindMissing != nil {
		var additional []string

		additional, err = w.FindMissing(ctx)
		missing = append(missing, additional...)
	}

	if err == nil {
		w.mu.Lock()
		w.missing = missing
		w.mu.Unlock()
	}

	return missing, err
}

// logLevel returns the level of the log line that the area is off. A user need not have the kinds of other
// projects, but the operator's own CRDs must be complete.
func (w *KindWaiter) logLevel() slog.Level {
	if w.FindMissing != nil {
		return slog.LevelWarn
	}

	return slog.LevelInfo
}

// setUp calls SetupWithManager, and then adds the controllers to the manager, which starts them. It waits for a manager
// that is starting, and such a manager waits for the KindWaiter when it is stopped, so setUp may not end with ctx.
func (w *KindWaiter) setUp(ctx context.Context) error {
	deferring := &deferringManager{Manager: w.Manager, readyzChecks: map[string]healthz.Checker{}}
	if err := w.SetupWithManager(ctx, deferring); err != nil {
		return err
	}

	for _, runnable := range deferring.runnables {
		if err := w.Manager.Add(runnable); err != nil {
			return fmt.Errorf("start %s: %w", w.Area, err)
		}
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.isStarted, w.readyzChecks = true, deferring.readyzChecks

	return nil
}

// deferringManager is a manager that collects runnables instead of starting them. A running manager
// starts an added controller immediately, before the controller's builder has added the sources.
// The controller would not wait for sources that are added later, neither for their caches nor for
// state that must be read before the first reconcile.
type deferringManager struct {
	ctrl.Manager

	runnables    []manager.Runnable
	readyzChecks map[string]healthz.Checker
}

// AddReadyzCheck collects the check.
func (h *deferringManager) AddReadyzCheck(name string, check healthz.Checker) error {
	h.readyzChecks[name] = check

	return nil
}

// Add collects the runnable.
func (h *deferringManager) Add(runnable manager.Runnable) error {
	h.runnables = append(h.runnables, runnable)

	return nil
}

func (w *KindWaiter) interval() time.Duration {
	if w.Interval > 0 {
		return w.Interval
	}

	return defaultInterval
}

// missingKinds returns the kinds that the API server does not serve.
func missingKinds(api discovery.ServerResourcesInterface, kinds []schema.GroupVersionKind) ([]string, error) {
	var out []string

	for _, kind := range kinds {
		group := kind.GroupVersion().String()

		served, err := api.ServerResourcesForGroupVersion(group)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("discover kinds of %s: %w", group, err)
		}

		found := false
		if err == nil {
			for i := range served.APIResources {
				found = found || served.APIResources[i].Kind == kind.Kind
			}
		}

		if name := kind.Kind + "." + group; !found && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}

	return out, nil
}
