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
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

const (
	// asksAtOnce bounds the questions to the API, kubeTimeout each call to the cluster.
	asksAtOnce  = 8
	kubeTimeout = 30 * time.Second
	kubeQPS     = 50
	kubeBurst   = 100
	// fewResources may all be gone; of more than these only max_share may.
	fewResources = 5
)

// Options of Run.
type Options struct {
	// Config, complete: see Defaults.
	Config platform.Sweep
	// Kube is the cluster.
	Kube *rest.Config
	// API is the fleet API.
	API *client.Client
	// Keys verify the objects' identities.
	Keys *stamp.Keys
	// Clock. Default: the real one.
	Clock clock.Clock
	// Log. Default: slog.Default.
	Log *slog.Logger
}

// Defaults are what a configuration file is read over.
func Defaults() platform.Sweep {
	return platform.Sweep{
		MaxDeletions: 100, MaxShare: 0.5, MinAge: 10 * time.Minute,
		Log: platform.Log{Level: "info", Format: "json"},
	}
}

// sweeper is one run.
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
	kube.WarningHandler = rest.NoWarnings{} // old kinds are listed because all are
	kubeconfig.Bound(kube)

	find, err := discovery.NewDiscoveryClientForConfig(kube)
	if err != nil {
		return nil, fmt.Errorf("make client of the cluster: %w", err)
	}

	meta, err := metadata.NewForConfig(kube)
	if err != nil {
		return nil, fmt.Errorf("make client of the cluster: %w", err)
	}

	return &sweeper{
		Options: options, discovery: find, metadata: meta,
		report: Report{
			Started: options.Clock.Now().UTC(), DryRun: !options.Config.Delete,
			Outcomes: map[string]int{}, Items: []Item{},
		},
	}, nil
}

func (s *sweeper) run(ctx context.Context) error {
	if err := s.probe(ctx); err != nil {
		return err
	}

	kinds, err := s.kinds(ctx)
	if err != nil {
		return err
	}

	found, err := s.objects(ctx, kinds)
	if err != nil {
		return err
	}

	s.report.Kinds, s.report.Objects = len(kinds), len(found)

	candidates := s.proven(found)

	doomed, err := s.ask(ctx, candidates)
	if err != nil {
		return err
	}

	s.act(ctx, doomed)

	return nil
}

// probe has the API answer two questions whose answers are known: a page of resources,
// and a resource that can't be. Whatever stands where the API should be, a proxy, the
// API of something else, or an API of another version, does not answer both.
func (s *sweeper) probe(ctx context.Context) error {
	if _, err := s.API.List(ctx, "resources", client.ListOptions{Size: 1}); err != nil {
		return fmt.Errorf("probe the fleet API: %w", err)
	}

	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("probe the fleet API: %w", err)
	}

	_, err = s.API.Get(ctx, id.String())
	answer, _ := errors.AsType[*client.Error](err)

	switch {
	case err == nil:
		return errors.New("probe the fleet API: it has a resource with an id just made up: is base_url right?")
	case !errors.Is(err, client.ErrNotFound):
		return fmt.Errorf("probe the fleet API: it does not tell what it has not: %w", err)
	case answer.OfTenant:
		return errors.New("probe the fleet API: it shows one tenant's resources alone, and all others' objects would look " +
			"left behind: give sweep's token all_tenants in the API's roles")
	}

	return nil
}

// proven leaves the objects that may go if their resource has gone.
func (s *sweeper) proven(found []*object) []*object {
	var out []*object

	for _, o := range found {
		if reason, message := s.doubt(o); reason != "" {
			s.note(o, Skipped, reason, message)

			continue
		}

		out = append(out, o)
	}

	return out
}

// doubt is why an object can't be judged, if so.
func (s *sweeper) doubt(o *object) (reason, message string) {
	id, err := uuid.Parse(o.item.ResourceID)
	if err != nil || id.String() != o.item.ResourceID {
		return ReasonNoResourceID, "the label hyperfleet.io/resource-id is no id of a resource"
	}

	switch err := s.verify(o); {
	case errors.Is(err, stamp.ErrNoIdentity):
		return ReasonNotStamped, "an adapter without a key made it, or none of ours"
	case errors.Is(err, stamp.ErrUnknownKey):
		return ReasonUnknownKey, "another key than ours, or none, proves its labels"
	case err != nil:
		return ReasonForged, "its labels are not those that the adapter gave it"
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
	return s.Keys.Verify(o.meta, o.kind.kind.GroupKind())
}

// ask asks the API for each resource once, and gives the objects of those that are gone.
func (s *sweeper) ask(ctx context.Context, candidates []*object) ([]*object, error) {
	byID := map[string][]*object{}
	for _, o := range candidates {
		byID[o.item.ResourceID] = append(byID[o.item.ResourceID], o)
	}

	var mu sync.Mutex

	answers := map[string]error{}

	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(asksAtOnce)

	for id := range byID {
		group.Go(func() error {
			_, err := s.API.Get(bounded, id)

			mu.Lock()
			defer mu.Unlock()

			answers[id] = err

			return bounded.Err()
		})
	}

	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("ask the fleet API: %w", err)
	}

	var doomed []*object

	for id, err := range answers {
		s.report.Resources++

		switch {
		case err == nil:
			s.noteAll(byID[id], Kept, "")
		case errors.Is(err, client.ErrNotFound):
			s.report.Gone++
			doomed = append(doomed, byID[id]...)
		default:
			s.noteAll(byID[id], Skipped, ReasonAPI)
			s.report.Errors = append(s.report.Errors, fmt.Sprintf("ask the fleet API: %v", err))
		}
	}

	return doomed, nil
}

// limit says why nothing may be deleted, if so: an API that has lost its data answers
// just as one whose resources were removed by force.
func (s *sweeper) limit(doomed int) string {
	if doomed > s.Config.MaxDeletions {
		return fmt.Sprintf("to be deleted: %s; max_deletions is %d: if that is right, raise it for one run",
			english.Plural(doomed, "object", ""), s.Config.MaxDeletions)
	}

	if gone, asked := s.report.Gone, s.report.Resources; asked > fewResources && float64(gone) > s.Config.MaxShare*float64(asked) {
		return fmt.Sprintf("the fleet API has %d of %d resources no more, and max_share is %g: has it lost its data? "+
			"If that is right, raise max_share for one run", gone, asked, s.Config.MaxShare)
	}

	return ""
}

// act deletes, or says that it would.
func (s *sweeper) act(ctx context.Context, doomed []*object) {
	if s.report.Stopped = s.limit(len(doomed)); s.report.Stopped != "" {
		s.noteAll(doomed, Skipped, ReasonLimit)

		return
	}

	if s.report.DryRun {
		s.noteAll(doomed, WouldDelete, "")

		return
	}

	for _, o := range doomed {
		if ctx.Err() != nil {
			s.note(o, Skipped, "", "the run was ended")

			continue
		}

		s.remove(ctx, o)
	}
}

// remove deletes the very object that was looked at: one with the same name that was
// made since, or one that was changed since (detached, or stamped anew), stays.
func (s *sweeper) remove(ctx context.Context, o *object) {
	background := metav1.DeletePropagationBackground

	err := s.metadata.Resource(o.kind.resource).Namespace(o.meta.Namespace).Delete(ctx, o.meta.Name, metav1.DeleteOptions{
		PropagationPolicy: &background,
		Preconditions:     &metav1.Preconditions{UID: &o.meta.UID, ResourceVersion: &o.meta.ResourceVersion},
	})

	log := s.Log.With("kind", o.item.Kind, "namespace", o.item.Namespace, "name", o.item.Name,
		"adapter", o.item.Adapter, "resourceId", o.item.ResourceID)

	switch {
	case err == nil:
		log.InfoContext(ctx, "object deleted: its resource is gone")
		s.note(o, Deleted, "", "")
	case apierrors.IsNotFound(err):
		s.note(o, Skipped, ReasonDeleting, "it went while sweep ran")
	case apierrors.IsConflict(err):
		s.note(o, Skipped, ReasonChanged, "it was changed while sweep ran")
	default:
		log.WarnContext(ctx, "object was not deleted", "error", err)
		s.note(o, Failed, string(apierrors.ReasonForError(err)), err.Error())
	}
}

func (s *sweeper) noteAll(objects []*object, outcome, reason string) {
	for _, o := range objects {
		s.note(o, outcome, reason, "")
	}
}

func (s *sweeper) note(o *object, outcome, reason, message string) {
	s.report.Outcomes[outcome]++

	if outcome == Kept {
		return
	}

	o.item.Outcome, o.item.Reason, o.item.Message = outcome, reason, message
	s.report.Items = append(s.report.Items, o.item)
}
