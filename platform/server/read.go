// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

func (s *Server) get(ctx context.Context, at scope) (answer, error) {
	found, err := s.find(ctx, s.store.Get, at)
	if err != nil {
		return answer{}, err
	}

	return answer{http.StatusOK, s.tell(found)}, nil
}

func (s *Server) list(ctx context.Context, at scope, query openapi.ListResourcesParams) (answer, error) {
	fields, err := parseFields(query.Fields)
	if err != nil {
		return answer{}, err
	}

	if (query.RefType == nil) != (query.RefTargetId == nil) {
		return answer{}, invalid(entity.FieldError{Field: "ref_type", Message: "goes together with ref_target_id"})
	}

	if err := s.knownKind(query.Kind); err != nil {
		return answer{}, err
	}

	ask := store.ListQuery{
		Search: or(query.Search, ""), Order: or(query.Order, "created_time desc"), Page: or(query.Page, 1),
		Size: or(query.Size, 20), RefType: or(query.RefType, ""), RefTargetID: or(query.RefTargetId, ""),
		Kind: or(query.Kind, ""), Tenancy: about(ctx).tenancy,
	}

	if at.kind != nil {
		ask.Kind = at.kind.Kind
	}

	if at.parent != nil {
		// A list below a parent that is not there would look like one without children.
		if _, err := s.find(ctx, s.store.Get, scope{kind: at.parent, id: at.parentID}); err != nil {
			return answer{}, err
		}

		ask.ParentID = at.parentID
	}

	found, total, err := s.store.List(ctx, ask)
	if err != nil {
		return answer{}, err
	}

	page := openapi.ResourceList{Items: make([]openapi.Resource, 0, len(found)), Page: ask.Page, Size: len(found), Total: total}
	for _, one := range found {
		page.Items = append(page.Items, s.tell(one))
	}

	if fields == nil {
		return answer{http.StatusOK, page}, nil
	}

	items, err := plain(page.Items)
	if err != nil {
		return answer{}, err
	}

	return answer{http.StatusOK, map[string]any{
		"items": fields.of(items), "page": page.Page, "size": page.Size, "total": page.Total,
	}}, nil
}

func (s *Server) statuses(ctx context.Context, at scope) (answer, error) {
	if _, err := s.find(ctx, s.store.Get, at); err != nil {
		return answer{}, err
	}

	found, err := s.store.Statuses(ctx, at.id)
	if err != nil {
		return answer{}, err
	}

	if found == nil {
		found = []openapi.AdapterStatus{}
	}

	return answer{http.StatusOK, openapi.StatusList{Items: found, Page: 1, Size: len(found), Total: len(found)}}, nil
}

func (s *Server) changes(ctx context.Context, query openapi.ListChangesParams) (answer, error) {
	if err := s.knownKind(query.Kind); err != nil {
		return answer{}, err
	}

	after, wait := or(query.After, ""), time.Duration(or(query.Wait, 0))*time.Second

	waiting, cancel := s.untilStop(ctx, &wait)
	defer cancel()

	feed, err := s.store.Changes(waiting, store.ChangeQuery{
		After: after, Kind: or(query.Kind, ""), Tenancy: about(ctx).tenancy, Limit: or(query.Limit, 500), Wait: wait,
	})

	switch {
	case err == nil:
	case ctx.Err() == nil && waiting.Err() != nil && after != "":
		// The program ends, and the caller goes on from where it was.
		feed = store.Feed{Next: after}
	default:
		return answer{}, err
	}

	out := openapi.ChangeList{Items: make([]openapi.Change, 0, len(feed.Items)), Next: feed.Next}
	for _, one := range feed.Items {
		out.Items = append(out.Items, openapi.Change{
			Generation: one.Generation, Href: s.href(one.Kind, one.ID, s.ownerKind(one), one.OwnerID), Id: one.ID,
			Kind: one.Kind, Operation: one.Operation,
		})
	}

	return answer{http.StatusOK, out}, nil
}

// knownKind refuses a kind that is not registered: of a misspelt one there is never
// anything.
func (s *Server) knownKind(kind *string) error {
	if kind == nil || *kind == "" {
		return nil
	}

	if _, known := s.registry.ByKind(*kind); !known {
		return invalid(entity.FieldError{Field: "kind", Message: "is not a registered kind"})
	}

	return nil
}

// untilStop ends a wait when the program is about to end; there is none once it is.
func (s *Server) untilStop(ctx context.Context, wait *time.Duration) (context.Context, context.CancelFunc) {
	select {
	case <-s.options.Stopping:
		*wait = 0
	default:
	}

	waiting, cancel := context.WithCancel(ctx)
	if *wait == 0 || s.options.Stopping == nil {
		return waiting, cancel
	}

	go func() {
		select {
		case <-s.options.Stopping:
			cancel()
		case <-waiting.Done():
		}
	}()

	return waiting, cancel
}

// ownerKind is the kind of a changed resource's owner.
func (s *Server) ownerKind(change store.Change) string {
	kind, known := s.registry.ByKind(change.Kind)
	if !known || kind.Parent == nil || change.OwnerID == "" {
		return ""
	}

	return kind.Parent.Kind
}

func (s *Server) lease(ctx context.Context, name string, ask openapi.LeaseRequest) (answer, error) {
	lease, err := s.store.PutLease(ctx, name, ask.Holder, time.Duration(ask.TtlSeconds)*time.Second)
	if err != nil {
		return answer{}, err
	}

	if before, known := s.holders.Get(name); known && before == lease.Holder {
		about(ctx).quiet = true
	}

	s.holders.Add(name, lease.Holder)

	return answer{http.StatusOK, openapi.Lease{
		Name: name, Holder: lease.Holder, ExpiresInSeconds: max(lease.ExpiresIn, 0).Seconds(),
	}}, nil
}

func or[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}

	return *value
}
