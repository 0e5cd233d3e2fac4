// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

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
	// Config leads to the API server.
	Config *rest.Config
	// Open is called once, when the kinds are there. Its error ends the process.
	Open func(ctx context.Context) error
	// Interval between two looks. Default: 10 seconds.
	Interval time.Duration
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// NeedLeaderElection says that every replica waits, so that each can lead.
func (g *Gate) NeedLeaderElection() bool { return false }

// Start waits for the kinds, and opens.
func (g *Gate) Start(ctx context.Context) error {
	cfg := rest.CopyConfig(g.Config)
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

			return g.Open(ctx)
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
