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
	// changesWait is for how long a request for changes waits.
	changesWait = 25 * time.Second
	// minPause and maxPause are between calls that fail.
	minPause = 500 * time.Millisecond
	maxPause = 10 * time.Second
	// round is from one look at changes to the next, if there are any: what changes within
	// it is read with one list. The first change after a quiet time is read at once.
	round = 50 * time.Millisecond
	// pagePause is between two pages of the slow list.
	pagePause = time.Second
	// maxIDs in one search, whose text is at most 4096 long.
	maxIDs = 50

	opRemoved = "removed"
	// leanFields are what the default decision and the default data need.
	leanFields = "id,kind,href,generation,owner_references,status.conditions"
)

// follow keeps the index: it lists all, then follows the change feed, and begins anew when
// the feed does not go back far enough.
func (s *Sentinel) follow(ctx context.Context) {
	cursor, pause := "", minPause

	for ctx.Err() == nil {
		next, err := s.followOn(ctx, cursor)

		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			cursor, pause = next, minPause

			continue
		case errors.Is(err, client.ErrCursorGone):
			cursor = ""

			s.meters.cursorsGone.Inc()
			s.log.Warn("the change feed does not go back far enough: all is listed", "error", err)
		default:
			// The cursor stays: what was not taken is read again.
			s.meters.apiErrors.WithLabelValues(errorChanges).Inc()
			s.log.Warn("follow the fleet API: it is tried again", "error", err)
		}

		_ = retry.Pause(ctx, s.clock, pause)
		pause = min(2*pause, maxPause)
	}
}

// followOn takes what has changed since a cursor, or lists all where there is none, and gives
// the next cursor.
func (s *Sentinel) followOn(ctx context.Context, cursor string) (string, error) {
	if cursor == "" {
		// The cursor is older than the list, so that nothing falls between them.
		now, err := s.api.Changes(ctx, "", "", 0)
		if err != nil {
			return "", err
		}

		if err := s.list(ctx, 0); err != nil {
			return "", err
		}

		s.begin()

		return now.Next, nil
	}

	changes, err := s.api.Changes(ctx, cursor, s.kindOf(), changesWait)
	if err != nil {
		return "", err
	}

	begun := s.clock.Now()

	if err := s.take(ctx, changes.Items); err != nil {
		return "", err
	}

	s.polled()

	if len(changes.Items) > 0 {
		// It ends early with ctx, which the next turn sees.
		_ = retry.Pause(ctx, s.clock, round-s.clock.Since(begun))
	}

	return changes.Next, nil
}

// take reads what changed and has it looked at.
func (s *Sentinel) take(ctx context.Context, changes []openapi.Change) error {
	var (
		changed []string
		seen    = map[string]bool{}
	)

	// The last word on a resource is its state, which is read.
	for _, change := range slices.Backward(changes) {
		if seen[change.Id] {
			continue
		}

		seen[change.Id] = true

		if change.Operation == opRemoved {
			s.index.drop(change.Id, s.clock.Now())

			continue
		}

		changed = append(changed, change.Id)
	}

	slices.Reverse(changed)

	if err := s.lookAt(ctx, changed); err != nil {
		return err
	}

	s.meters.known.Set(float64(s.index.size()))

	return nil
}

// verify reads again what is due unless it was reported on meanwhile, and decides then. What
// can't be read is doubted again when it is next looked at.
func (s *Sentinel) verify(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.doubts:
		}

		if err := s.lookAt(ctx, s.index.takeDoubted()); err != nil && ctx.Err() == nil {
			s.log.Warn("read what is due: it is tried again", "error", err)
		}
	}
}

// lookAt reads resources and decides on them.
func (s *Sentinel) lookAt(ctx context.Context, all []string) error {
	for ids := range slices.Chunk(all, maxIDs) {
		if err := s.read(ctx, ids); err != nil {
			return err
		}

		s.consider(ids...)
	}

	return nil
}

// read reads resources by id; those that the API does not list don't match, or are gone.
func (s *Sentinel) read(ctx context.Context, ids []string) error {
	quoted := make([]string, len(ids))
	for i, id := range ids {
		quoted[i] = quote(id)
	}

	listed, asked, err := s.page(ctx, "id in ("+strings.Join(quoted, ", ")+")", client.MaxPageSize)
	if err != nil {
		return err
	}

	for _, id := range ids {
		if !slices.Contains(listed, id) {
			s.index.drop(id, asked)
		}
	}

	return nil
}

// list reads all pages, with a pause between two, and forgets what is gone. Pages follow
// each other by id and not by number, which would leave out resources when others go.
func (s *Sentinel) list(ctx context.Context, pause time.Duration) error {
	after := ""

	for {
		var condition string
		if after != "" {
			condition = "id > " + quote(after)
		}

		listed, asked, err := s.page(ctx, condition, s.conf.PageSize)
		if err != nil {
			return err
		}

		last := ""
		if len(listed) >= s.conf.PageSize {
			last = listed[len(listed)-1]
		}

		for _, id := range s.index.missing(after, last, listed) {
			s.index.drop(id, asked)
		}

		s.polled()
		s.meters.known.Set(float64(s.index.size()))

		if last == "" {
			return nil
		}

		after = last

		if err := retry.Pause(ctx, s.clock, pause); err != nil {
			return err
		}
	}
}

// page reads one page of what the selector and the condition allow into the index. It gives
// the ids in their order, and when they were asked for.
func (s *Sentinel) page(ctx context.Context, condition string, size int) (listed []string, asked time.Time, err error) {
	parts := search(s.conf.ResourceSelector)
	if condition != "" {
		parts = append(parts, condition)
	}

	options := client.ListOptions{Size: size, Order: "id asc", Search: strings.Join(parts, " and ")}
	if !s.index.whole {
		options.Fields = leanFields
	}

	asked = s.clock.Now()

	page, err := s.api.List(ctx, s.conf.ResourceType, options)
	if err != nil {
		s.meters.apiErrors.WithLabelValues(errorList).Inc()

		return nil, asked, err
	}

	s.meters.pages.Inc()

	for i := range page.Items {
		if err := s.index.put(&page.Items[i], asked, s.clock.Now()); err != nil {
			return nil, asked, err
		}

		s.learn(&page.Items[i])
		listed = append(listed, page.Items[i].Id)
	}

	return listed, asked, nil
}

// learn notes the kind of the collection, and the types of conditions there are.
func (s *Sentinel) learn(r *openapi.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.kind = r.Kind

	if len(s.unseen) == 0 {
		return
	}

	for _, condition := range r.Status.Conditions {
		delete(s.unseen, condition.Type)
	}
}

// kindOf is the kind whose changes are read; empty, all of them, until one is known.
func (s *Sentinel) kindOf() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.kind
}

// relist reads everything again every now and then, slowly: the net below the change
// feed.
func (s *Sentinel) relist(ctx context.Context) {
	for retry.Pause(ctx, s.clock, s.conf.RelistInterval) == nil {
		if err := s.list(ctx, pagePause); err != nil && ctx.Err() == nil {
			s.log.Warn("list everything again", "error", err)
		}
	}
}
