// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// get reads a resource that a condition, if there is one, has to hold for.
func (s *Server) get(ctx context.Context, at scope, condition string) (answer, error) {
	resource, err := s.find(ctx, s.store.Get, at)

	out := answer{http.StatusOK, s.tell(resource)}
	if err != nil || condition == "" {
		return out, err
	}

	if _, err := search.Parse(condition); err != nil {
		return answer{}, badQuery("search", err)
	}

	found, _, err := s.store.List(ctx, store.ListQuery{
		Search: "id = '" + canonical(at.id) + "' and (" + condition + ")", Page: 1, Size: 1, Tenancy: about(ctx).tenancy,
	})
	if err == nil && len(found) == 0 {
		err = notFound("", at.id)
	}

	return out, err
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
		Search: ptr.Deref(query.Search, ""), Order: ptr.Deref(query.Order, "created_time desc"), Page: ptr.Deref(query.Page, 1),
		Size: ptr.Deref(query.Size, 20), RefType: ptr.Deref(query.RefType, ""), RefTargetID: ptr.Deref(query.RefTargetId, ""),
		Kind: ptr.Deref(query.Kind, ""), Tenancy: about(ctx).tenancy,
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

func (s *Server) statuses(ctx context.Context, at scope, query openapi.ListResourceStatusesParams) (answer, error) {
	if _, err := s.find(ctx, s.store.Get, at); err != nil {
		return answer{}, err
	}

	found, err := s.store.Statuses(ctx, at.id)
	if err != nil {
		return answer{}, err
	}

	if query.Search != nil && *query.Search != "" {
		wanted, err := search.OneOf("adapter", *query.Search)
		if err != nil {
			return answer{}, badQuery("search", err)
		}

		found = slices.DeleteFunc(found, func(one openapi.AdapterStatus) bool { return !slices.Contains(wanted, one.Adapter) })
	}

	if err := orderStatuses(found, ptr.Deref(query.Order, "adapter")); err != nil {
		return answer{}, err
	}

	page, size := ptr.Deref(query.Page, 1), ptr.Deref(query.Size, 20)
	from := min((page-1)*size, len(found))
	items := append([]openapi.AdapterStatus{}, found[from:min(from+size, len(found))]...)

	return answer{http.StatusOK, openapi.StatusList{Items: items, Page: page, Size: len(items), Total: len(found)}}, nil
}

// orderStatuses orders reports by a field and a direction; those that are alike by adapter.
func orderStatuses(list []openapi.AdapterStatus, order string) error {
	fields := map[string]func(a, b openapi.AdapterStatus) int{
		"adapter":             func(a, b openapi.AdapterStatus) int { return strings.Compare(a.Adapter, b.Adapter) },
		"created_time":        func(a, b openapi.AdapterStatus) int { return a.CreatedTime.Compare(b.CreatedTime) },
		"last_report_time":    func(a, b openapi.AdapterStatus) int { return a.LastReportTime.Compare(b.LastReportTime) },
		"observed_time":       func(a, b openapi.AdapterStatus) int { return a.ObservedTime.Compare(b.ObservedTime) },
		"observed_generation": func(a, b openapi.AdapterStatus) int { return cmp.Compare(a.ObservedGeneration, b.ObservedGeneration) },
	}

	words := strings.Fields(order)
	if len(words) == 1 {
		words = append(words, "asc")
	}

	if len(words) != 2 || fields[words[0]] == nil || words[1] != "asc" && words[1] != "desc" {
		return badQuery("order", fmt.Errorf("write one of %s, and asc or desc",
			strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
	}

	slices.SortStableFunc(list, func(a, b openapi.AdapterStatus) int {
		if words[1] == "desc" {
			a, b = b, a
		}

		return fields[words[0]](a, b)
	})

	return nil
}

// badQuery says what is wrong with a parameter.
func badQuery(field string, err error) error {
	return &Error{Code: CodeQuery, Detail: "see errors", Fields: []entity.FieldError{{Field: field, Message: err.Error()}}}
}

func (s *Server) changes(ctx context.Context, query openapi.ListChangesParams) (answer, error) {
	if err := s.knownKind(query.Kind); err != nil {
		return answer{}, err
	}

	after, wait := ptr.Deref(query.After, ""), time.Duration(ptr.Deref(query.Wait, 0))*time.Second

	waiting, cancel := context.WithCancel(ctx)
	defer cancel()

	// A wait ends when the program is about to end; there is none once it is.
	if s.options.Stopping.Err() != nil {
		wait = 0
	} else {
		defer context.AfterFunc(s.options.Stopping, cancel)()
	}

	feed, err := s.store.Changes(waiting, store.ChangeQuery{
		After: after, Kind: ptr.Deref(query.Kind, ""), Tenancy: about(ctx).tenancy, Limit: ptr.Deref(query.Limit, 500),
		Wait: wait,
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
	if name := ptr.Deref(kind, ""); name != "" && s.registry.ByKind(name) == nil {
		return invalid(entity.FieldError{Field: "kind", Message: "is not a registered kind"})
	}

	return nil
}

// ownerKind is the kind of a changed resource's owner.
func (s *Server) ownerKind(change store.Change) string {
	kind := s.registry.ByKind(change.Kind)
	if kind == nil || kind.Parent == nil || change.OwnerID == "" {
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

	lease.ExpiresInSeconds = max(lease.ExpiresInSeconds, 0)

	return answer{http.StatusOK, lease}, nil
}
