// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const (
	// changesWait is how long a request for changes waits for one.
	changesWait = 25 * time.Second
	// minRetryDelay and maxRetryDelay limit the delay between failing calls.
	minRetryDelay = 500 * time.Millisecond
	maxRetryDelay = 10 * time.Second
	// changesInterval is the minimum interval between requests for changes while resources change.
	// All resources that change within it are read with one list. The first change after an idle
	// period is read immediately.
	changesInterval = 50 * time.Millisecond
	// pageInterval is the delay between two pages of the periodic list.
	pageInterval = time.Second
	// maxIDsPerSearch is the number of IDs in one search, whose text is limited to 4096 bytes.
	maxIDsPerSearch = 50

	operationRemoved = "removed"
	// minimalFields are the fields that the default decision and the default data need.
	minimalFields = "id,kind,href,generation,owner_references,status.conditions"
)

// follow keeps the index up to date: it lists all resources, then follows the change feed. If the feed
// no longer has the changes after the cursor, it lists all resources again and sends an event for each
// resource.
func (s *Sentinel) follow(ctx context.Context) {
	cursor, delay := "", minRetryDelay

	for ctx.Err() == nil {
		next, err := s.followFrom(ctx, cursor)

		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			cursor, delay = next, minRetryDelay

			continue
		case errors.Is(err, client.ErrCursorGone):
			cursor = ""

			// The database may have been restored from a backup: the same generation may then have another content.
			s.index.beginRestore()
			s.metrics.cursorsGone.Inc()
			s.log.Warn("the change feed no longer has the changes after the cursor: list all resources", "error", err)
		default:
			// The cursor does not advance, so the next request returns the same changes again.
			s.metrics.apiErrors.WithLabelValues(errorChanges).Inc()
			s.recordAPIError(err)
			s.log.Warn("could not follow the fleet API: retry later", "error", err)
		}

		_ = retry.Sleep(ctx, s.clock, delay)
		delay = min(2*delay, maxRetryDelay)
	}
}

// followFrom applies the changes after a cursor, or lists all resources if the cursor is empty. It
// returns the next cursor.
func (s *Sentinel) followFrom(ctx context.Context, cursor string) (string, error) {
	if cursor == "" {
		// The cursor is read before the list, so that no change between them is lost.
		current, err := s.api.Changes(ctx, "", "", 0)
		if err != nil {
			return "", err
		}

		if err := s.listAll(ctx, 0); err != nil {
			return "", err
		}

		s.finishListing()

		return current.Next, nil
	}

	changes, err := s.api.Changes(ctx, cursor, s.knownKind(), changesWait)
	if err != nil {
		return "", err
	}

	start := s.clock.Now()

	if err := s.applyChanges(ctx, changes.Items); err != nil {
		return "", err
	}

	s.recordResponse()

	if len(changes.Items) > 0 {
		// Sleep returns early if ctx ends. The caller checks ctx.
		_ = retry.Sleep(ctx, s.clock, changesInterval-s.clock.Since(start))
	}

	return changes.Next, nil
}

// applyChanges reads the changed resources and enqueues those whose event is due.
func (s *Sentinel) applyChanges(ctx context.Context, changes []openapi.Change) error {
	var (
		changed []string
		seen    = map[string]bool{}
	)

	// Only the last change of a resource counts, because the resource is read anyway.
	for _, change := range slices.Backward(changes) {
		if seen[change.Id] {
			continue
		}

		seen[change.Id] = true

		if change.Operation == operationRemoved {
			s.index.remove(change.Id, s.clock.Now())

			continue
		}

		changed = append(changed, change.Id)
	}

	slices.Reverse(changed)

	if err := s.refresh(ctx, changed); err != nil {
		return err
	}

	s.metrics.known.Set(float64(s.index.size()))

	return nil
}

// verifyDue reads due resources again and then decides whether an event is due, because an adapter
// may have reported on them in the meantime. If it cannot read a resource, the next evaluation
// marks the resource as stale again.
func (s *Sentinel) verifyDue(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.recheck:
		}

		if err := s.refresh(ctx, s.index.takeStale()); err != nil && ctx.Err() == nil {
			s.log.Warn("could not read due resources: retry later", "error", err)
		}
	}
}

// refresh reads resources by ID and enqueues those whose event is due. It removes resources that the API does
// not return, because they do not match the selector or do not exist.
func (s *Sentinel) refresh(ctx context.Context, resourceIDs []string) error {
	for ids := range slices.Chunk(resourceIDs, maxIDsPerSearch) {
		quoted := make([]string, len(ids))
		for i, id := range ids {
			quoted[i] = quote(id)
		}

		listedIDs, requestTime, err := s.listPage(ctx, "id in ("+strings.Join(quoted, ", ")+")", client.MaxPageSize)
		if err != nil {
			return err
		}

		for _, id := range ids {
			if !slices.Contains(listedIDs, id) {
				s.index.remove(id, requestTime)
			}
		}

		s.enqueueDue(ids...)
	}

	return nil
}

// listAll reads all pages with a delay between them, and removes resources that do not exist. The
// next page begins after the last ID instead of at a page number. With page numbers, the list would
// miss resources if others are deleted between two pages.
func (s *Sentinel) listAll(ctx context.Context, delay time.Duration) error {
	afterID := ""

	for {
		var condition string
		if afterID != "" {
			condition = "id > " + quote(afterID)
		}

		listedIDs, requestTime, err := s.listPage(ctx, condition, s.conf.PageSize)
		if err != nil {
			return err
		}

		lastID := ""
		if len(listedIDs) >= s.conf.PageSize {
			lastID = listedIDs[len(listedIDs)-1]
		}

		for _, id := range s.index.findMissing(afterID, lastID, listedIDs) {
			s.index.remove(id, requestTime)
		}

		s.recordResponse()
		s.metrics.known.Set(float64(s.index.size()))

		if lastID == "" {
			return nil
		}

		afterID = lastID

		if err := retry.Sleep(ctx, s.clock, delay); err != nil {
			return err
		}
	}
}

// listPage reads one page of the resources that match the selector and the condition into the
// index. It returns their IDs in order, and the time of the request.
func (s *Sentinel) listPage(
	ctx context.Context, condition string, size int,
) (listedIDs []string, requestTime time.Time, err error) {
	parts := buildSearch(s.conf.ResourceSelector)
	if condition != "" {
		parts = append(parts, condition)
	}

	options := client.ListOptions{Size: size, Order: "id asc", Search: strings.Join(parts, " and ")}
	if !s.index.needsResource {
		options.Fields = minimalFields
	}

	requestTime = s.clock.Now()

	page, err := s.api.List(ctx, s.conf.ResourceType, options)
	if err != nil {
		s.metrics.apiErrors.WithLabelValues(errorList).Inc()

		return nil, requestTime, err
	}

	s.metrics.pages.Inc()

	responseTime := s.clock.Now()

	for i := range page.Items {
		if err := s.index.put(&page.Items[i], requestTime, responseTime); err != nil {
			return nil, requestTime, err
		}

		s.recordSeen(&page.Items[i])
		listedIDs = append(listedIDs, page.Items[i].Id)
	}

	return listedIDs, requestTime, nil
}

// recordSeen records the kind of the collection, and which condition types exist.
func (s *Sentinel) recordSeen(r *openapi.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.kind = r.Kind

	if len(s.unseenTypes) == 0 {
		return
	}

	for _, condition := range r.Status.Conditions {
		delete(s.unseenTypes, condition.Type)
	}
}

// knownKind returns the kind whose changes are read. It is empty until the kind is known; then the
// changes of all kinds are read.
func (s *Sentinel) knownKind() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.kind
}

// relistPeriodically lists all resources slowly at each relist interval, in case the change feed
// missed something.
func (s *Sentinel) relistPeriodically(ctx context.Context) {
	for retry.Sleep(ctx, s.clock, s.conf.RelistInterval) == nil {
		if err := s.listAll(ctx, pageInterval); err != nil && ctx.Err() == nil {
			s.log.Warn("could not list all resources again", "error", err)
		}
	}
}
