// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import "context"

// Resources by their kind.

// ListKind answers a page of them.
func (s *Server) ListKind(ctx context.Context, in ListKindRequestObject) (ListKindResponseObject, error) {
	at, err := s.scopeOf(in.Plural, "", "", "")
	if err != nil {
		return nil, err
	}

	return s.list(ctx, at, listQuery{
		Page: in.Params.Page, Size: in.Params.Size, Order: in.Params.Order, Search: in.Params.Search,
		Fields: in.Params.Fields, RefType: in.Params.RefType, RefTargetId: in.Params.RefTargetId,
	})
}

// CreateKind makes one.
func (s *Server) CreateKind(ctx context.Context, in CreateKindRequestObject) (CreateKindResponseObject, error) {
	at, err := s.scopeOf(in.Plural, "", "", "")
	if err != nil {
		return nil, err
	}

	return s.create(ctx, at, *in.Body)
}

// GetKind answers one.
func (s *Server) GetKind(ctx context.Context, in GetKindRequestObject) (GetKindResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, "", "")
	if err != nil {
		return nil, err
	}

	return s.get(ctx, at)
}

// PatchKind changes one.
func (s *Server) PatchKind(ctx context.Context, in PatchKindRequestObject) (PatchKindResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, "", "")
	if err != nil {
		return nil, err
	}

	return s.patch(ctx, at, *in.Body)
}

// DeleteKind asks for the deletion of one.
func (s *Server) DeleteKind(ctx context.Context, in DeleteKindRequestObject) (DeleteKindResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, "", "")
	if err != nil {
		return nil, err
	}

	return s.remove(ctx, at)
}

// ForceDeleteKind removes one that is being deleted.
func (s *Server) ForceDeleteKind(ctx context.Context, in ForceDeleteKindRequestObject) (ForceDeleteKindResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, "", "")
	if err != nil {
		return nil, err
	}

	return s.forceDelete(ctx, at, in.Body.Reason)
}

// ListKindStatuses answers the reports on one.
func (s *Server) ListKindStatuses(ctx context.Context, in ListKindStatusesRequestObject) (ListKindStatusesResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, "", "")
	if err != nil {
		return nil, err
	}

	return s.statuses(ctx, at)
}

// PutKindStatus takes a report on one.
func (s *Server) PutKindStatus(ctx context.Context, in PutKindStatusRequestObject) (PutKindStatusResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, "", "")
	if err != nil {
		return nil, err
	}

	return s.report(ctx, at, *in.Body)
}
