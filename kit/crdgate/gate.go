// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crdgate

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	// defaultInterval is the time between two looks.
	defaultInterval = 10 * time.Second
	// callTimeout bounds one look at one group.
	callTimeout = 10 * time.Second
)

// Gate opens when the API server serves all of its kinds. It is a manager.Runnable that
// every replica runs.
type Gate struct {
	// Area that stays off without the kinds, for the log.
	Area string
	// Kinds that the area needs.
	Kinds []schema.GroupVersionKind
	// Manager that the area's controllers are added to. Required.
	Manager ctrl.Manager
	// Open is called once, when the kinds are there, and adds to the manager that it is
	// given. Its error ends the process, and nothing is added then.
	Open func(ctx context.Context, mgr ctrl.Manager) error
	// Interval between two looks. Default: 10 seconds.
	Interval time.Duration
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// NeedLeaderElection says that every replica waits, so that each can lead.
func (g *Gate) NeedLeaderElection() bool { return false }

// Start waits for the kinds, and opens.
func (g *Gate) Start(ctx context.Context) error {
	cfg := rest.CopyConfig(g.Manager.GetConfig())
	cfg.Timeout = callTimeout

	api, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("wait for kinds of %s: %w", g.Area, err)
	}

	said := false

	for {
		missing, err := missing(api, g.Kinds)

		switch {
		case err != nil:
			g.Log.WarnContext(ctx, "can't tell whether the kinds that an area needs are there, looking again",
				"area", g.Area, "error", err)
		case len(missing) == 0:
			g.Log.InfoContext(ctx, "area starts", "area", g.Area)

			return g.open(ctx)
		case !said:
			g.Log.InfoContext(ctx, "area is off until kinds that it needs are installed",
				"area", g.Area, "missing", strings.Join(missing, ", "))

			said = true
		}

		select {
		case <-ctx.Done():
			return nil
		case <-g.Clock.After(g.interval()):
		}
	}
}

func (g *Gate) open(ctx context.Context) error {
	held := &holding{Manager: g.Manager}
	if err := g.Open(ctx, held); err != nil {
		return err
	}

	for _, runnable := range held.runnables {
		if err := g.Manager.Add(runnable); err != nil {
			return fmt.Errorf("start %s: %w", g.Area, err)
		}
	}

	return nil
}

// holding is a manager that starts nothing yet. A controller that is added to one that runs
// starts at once, before its builder has given it its sources, and waits for none of those
// that come after: not for caches, and not for what is to be read back before its first
// pass.
type holding struct {
	ctrl.Manager

	runnables []manager.Runnable
}

// Add holds the runnable back.
func (h *holding) Add(runnable manager.Runnable) error {
	h.runnables = append(h.runnables, runnable)

	return nil
}

func (g *Gate) interval() time.Duration {
	if g.Interval > 0 {
		return g.Interval
	}

	return defaultInterval
}

// missing gives the kinds that the API server does not serve.
func missing(api discovery.ServerResourcesInterface, kinds []schema.GroupVersionKind) ([]string, error) {
	var out []string

	for _, kind := range kinds {
		group := kind.GroupVersion().String()

		served, err := api.ServerResourcesForGroupVersion(group)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("ask for the kinds of %s: %w", group, err)
		}

		there := false
		if err == nil {
			for i := range served.APIResources {
				there = there || served.APIResources[i].Kind == kind.Kind
			}
		}

		if name := kind.Kind + "." + group; !there && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}

	return out, nil
}
