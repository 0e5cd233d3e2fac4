// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

const (
	// maxConcurrentRequests is the maximum number of concurrent requests to the fleet API.
	// kubeTimeout is the timeout of each call to the cluster.
	maxConcurrentRequests = 8
	kubeTimeout           = 30 * time.Second
	kubeQPS               = 50
	kubeBurst             = 100
	// shareThreshold is the number of resources up to which max_share does not apply, so all of
	// them may be gone.
	shareThreshold = 5
)

// Options configure Run.
type Options struct {
	// Config is the configuration. All fields have to be set: see Defaults.
	Config platform.Sweep
	// Kube is the configuration for the cluster to sweep.
	Kube *rest.Config
	// API is the client of the fleet API.
	API *client.Client
	// Keys verify the identities of objects.
	Keys *stamp.Keys
	// Clock is the clock. Default: the real clock.
	Clock clock.WithTicker
	// Log is the logger. Default: slog.Default.
	Log *slog.Logger
}

// Defaults returns the default configuration, which a configuration file overrides.
func Defaults() platform.Sweep {
	return platform.Sweep{
		MaxDeletions: 100, MaxShare: 0.5, MinAge: 10 * time.Minute, Lease: "sweep",
		Clients: platform.SentinelPeers{HyperFleetAPI: platform.APIClient{Timeout: client.DefaultTimeout}},
		Log:     platform.Log{Level: "info", Format: "json"},
	}
}

type sweeper struct {
	Options

	discovery *discovery.DiscoveryClient
	metadata  metadata.Interface
	report    Report
}

func newSweeper(options Options) (*sweeper, error) {
	kube := rest.CopyConfig(options.Kube)
	kube.Timeout = kubeTimeout
	kube.QPS, kube.Burst = kubeQPS, kubeBurst
	kube.UserAgent = "hyperfleet-sweep"
	kube.WarningHandler = rest.NoWarnings{} // sweep lists all kinds, including deprecated ones
	credential.LimitResponses(kube)

	discoveryClient, err := discovery.NewDiscoveryClientForConfig(kube)
	if err != nil {
		return nil, fmt.Errorf("create client for the cluster: %w", err)
	}

	meta, err := metadata.NewForConfig(kube)
	if err != nil {
		return nil, fmt.Errorf("create client for the cluster: %w", err)
	}

	return &sweeper{
		Options: options, discovery: discoveryClient, metadata: meta,
		report: Report{
			Started: options.Clock.Now().UTC(), DryRun: !options.Config.Delete,
			Outcomes: map[string]int{}, Items: []Item{},
		},
	}, nil
}

func (s *sweeper) run(ctx context.Context) error {
	if err := s.probeAPI(ctx); err != nil {
		return err
	}

	kinds, err := s.listKinds(ctx)
	if err != nil {
		return err
	}

	found, err := s.listObjects(ctx, kinds)
	if err != nil {
		return err
	}

	s.report.Kinds, s.report.Objects = len(kinds), len(found)

	candidates := s.filterDeletable(found)

	orphans, err := s.findOrphans(ctx, candidates)
	if err != nil {
		return err
	}

	s.deleteOrphans(ctx, orphans)

	return nil
}

// probeAPI sends two requests with known responses to the API: one for a page of resources, and one
// for a resource that cannot exist. Anything that answers in place of the API, such as a proxy,
// another API or another version of the API, does not return the right response to both.
func (s *sweeper) probeAPI(ctx context.Context) error {
	if _, err := s.API.List(ctx, "resources", client.ListOptions{Size: 1}); err != nil {
		return fmt.Errorf("probe the fleet API: %w", err)
	}

	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("probe the fleet API: %w", err)
	}

	_, err = s.API.Get(ctx, id.String())
	apiError, _ := errors.AsType[*client.Error](err)

	switch {
	case err == nil:
		return errors.New("probe the fleet API: it returned a resource for a new random ID: check base_url")
	case !errors.Is(err, client.ErrNotFound):
		return fmt.Errorf("probe the fleet API: it does not report a missing resource as expected: %w", err)
	case apiError.IsTenantScoped:
		return errors.New("probe the fleet API: it returns the resources of only one tenant, so the objects of all other " +
			"tenants would look like orphans: set all_tenants in the role of sweep's token")
	}

	return nil
}

// filterDeletable returns the objects that may be deleted if their resource does not exist. It records
// the other objects as skipped.
func (s *sweeper) filterDeletable(found []*object) []*object {
	var out []*object

	for _, o := range found {
		if reason, message := s.findSkipReason(o); reason != "" {
			s.record(o, Skipped, reason, message)

			continue
		}

		out = append(out, o)
	}

	return out
}

// findSkipReason returns why sweep must not delete an object, whether its resource exists or not.
// Both results are empty if there is no such reason.
func (s *sweeper) findSkipReason(o *object) (reason, message string) {
	id, err := uuid.Parse(o.item.ResourceID)
	if err != nil || id.String() != o.item.ResourceID {
		return ReasonNoResourceID, "the label hyperfleet.io/resource-id is not the ID of a resource"
	}

	switch err := s.verify(o); {
	case errors.Is(err, stamp.ErrNoIdentity):
		return ReasonNotStamped, "an adapter without a key or another program created it"
	case errors.Is(err, stamp.ErrUnknownKey):
		return ReasonUnknownKey, "its identity is not signed with a key that sweep has"
	case err != nil:
		return ReasonForged, "its labels differ from those that the adapter set"
	}

	if o.meta.DeletionTimestamp != nil {
		return ReasonDeleting, ""
	}

	if s.Clock.Since(o.meta.CreationTimestamp.Time) < s.Config.MinAge {
		return ReasonTooYoung, ""
	}

	return "", ""
}

func (s *sweeper) verify(o *object) error {
	return s.Keys.Verify(o.meta, o.kind.gvk.GroupKind())
}

// findOrphans queries the API for each resource once, and returns the objects of those that do not
// exist.
func (s *sweeper) findOrphans(ctx context.Context, candidates []*object) ([]*object, error) {
	byID := map[string][]*object{}
	for _, o := range candidates {
		byID[o.item.ResourceID] = append(byID[o.item.ResourceID], o)
	}

	var mu sync.Mutex

	results := map[string]error{}

	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentRequests)

	for id := range byID {
		group.Go(func() error {
			_, err := s.API.Get(groupCtx, id)

			mu.Lock()
			defer mu.Unlock()

			results[id] = err

			return groupCtx.Err()
		})
	}

	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("query the fleet API: %w", err)
	}

	var orphans []*object

	for id, err := range results {
		s.report.Resources++

		switch {
		case err == nil:
			s.recordAll(byID[id], Kept, "")
		case errors.Is(err, client.ErrNotFound):
			s.report.Gone++
			orphans = append(orphans, byID[id]...)
		default:
			s.recordAll(byID[id], Skipped, ReasonAPI)
			s.report.Errors = append(s.report.Errors, fmt.Sprintf("query the fleet API: %v", err))
		}
	}

	return orphans, nil
}

// exceededLimit returns why the run must not delete anything, or an empty string. An API that has
// lost its data gives the same responses as one whose resources were deleted by force.
func (s *sweeper) exceededLimit(orphans int) string {
	if orphans > s.Config.MaxDeletions {
		return fmt.Sprintf("found %s to delete, but max_deletions is %d: if this is expected, raise it for one run",
			english.Plural(orphans, "object", ""), s.Config.MaxDeletions)
	}

	if gone, queried := s.report.Gone, s.report.Resources; queried > shareThreshold &&
		float64(gone) > s.Config.MaxShare*float64(queried) {
		return fmt.Sprintf("the fleet API no longer has %d of %d resources, but max_share is %g: check whether it has lost data. "+
			"If this is expected, raise max_share for one run", gone, queried, s.Config.MaxShare)
	}

	return ""
}

// deleteOrphans deletes the orphans. In a dry run it only records that it would.
func (s *sweeper) deleteOrphans(ctx context.Context, orphans []*object) {
	if s.report.Stopped = s.exceededLimit(len(orphans)); s.report.Stopped != "" {
		s.recordAll(orphans, Skipped, ReasonLimit)

		return
	}

	if s.report.DryRun {
		s.recordAll(orphans, WouldDelete, "")

		return
	}

	for _, o := range orphans {
		if ctx.Err() != nil {
			s.record(o, Skipped, "", "the run was canceled")

			continue
		}

		s.deleteObject(ctx, o)
	}
}

// deleteObject deletes exactly the object that was listed. It deletes nothing if somebody has changed
// the object since then (for example by removing or renewing its ownership record), or has created a
// new object with the same name.
func (s *sweeper) deleteObject(ctx context.Context, o *object) {
	background := metav1.DeletePropagationBackground

	err := s.metadata.Resource(o.kind.gvr).Namespace(o.meta.Namespace).Delete(ctx, o.meta.Name, metav1.DeleteOptions{
		PropagationPolicy: &background,
		Preconditions:     &metav1.Preconditions{UID: &o.meta.UID, ResourceVersion: &o.meta.ResourceVersion},
	})

	log := s.Log.With("kind", o.item.Kind, "namespace", o.item.Namespace, "name", o.item.Name,
		"adapter", o.item.Adapter, "resourceId", o.item.ResourceID)

	switch {
	case err == nil:
		log.InfoContext(ctx, "deleted an orphan: its resource does not exist")
		s.record(o, Deleted, "", "")
	case apierrors.IsNotFound(err):
		// The reason is the same as for an object whose deletion has not ended yet.
		s.record(o, Skipped, ReasonDeleting, "it was deleted during the run")
	case apierrors.IsConflict(err):
		s.record(o, Skipped, ReasonChanged, "it changed during the run")
	default:
		log.WarnContext(ctx, "could not delete an orphan", "error", err)
		s.record(o, Failed, string(apierrors.ReasonForError(err)), err.Error())
	}
}

func (s *sweeper) recordAll(objects []*object, outcome, reason string) {
	for _, o := range objects {
		s.record(o, outcome, reason, "")
	}
}

// record counts the outcome of an object, and adds the object to the report unless it is kept.
func (s *sweeper) record(o *object, outcome, reason, message string) {
	s.report.Outcomes[outcome]++

	if outcome == Kept {
		return
	}

	o.item.Outcome, o.item.Reason, o.item.Message = outcome, reason, message
	s.report.Items = append(s.report.Items, o.item)
}
