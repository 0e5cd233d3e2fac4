// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// maxNamed is how many resources in the way of a deletion are named.
const maxNamed = 10

// node is a resource with what is below it, all of it locked.
type node struct {
	store.Resource

	kind     *entity.Kind
	children []*node
}

func (s *Server) remove(ctx context.Context, at scope) (answer, error) {
	return s.change(ctx, at, http.StatusAccepted, func(ctx context.Context, u *requestTx, r store.Resource) (store.Resource, error) {
		return u.delete(ctx, r)
	})
}

// delete asks for the deletion of a resource and all that cascades from it.
func (u *requestTx) delete(ctx context.Context, r store.Resource) (store.Resource, error) {
	if _, err := u.kindOf(r); err != nil {
		return r, err
	}

	if r.Deleting() {
		return r, nil
	}

	tree, err := u.lockTree(ctx, r)
	if err != nil {
		return r, err
	}

	if err := restricted(tree); err != nil {
		return r, err
	}

	referrers, err := u.weakly(ctx, tree)
	if err != nil {
		return r, err
	}

	gone, err := u.deleteNode(ctx, tree)
	if err != nil {
		return r, err
	}

	for _, id := range referrers {
		if err := u.lookAgain(ctx, id); err != nil {
			return r, err
		}
	}

	if gone {
		err = u.lookAgain(ctx, tree.OwnerID)
	}

	return tree.Resource, err
}

// lockTree locks what is below a resource, owners before what they own: once an owner is
// locked nothing can be added to it.
func (u *requestTx) lockTree(ctx context.Context, r store.Resource) (*node, error) {
	out := &node{Resource: r, kind: u.registry.ByKind(r.Kind)}

	children, err := u.tx.Children(ctx, r.ID)
	if err != nil {
		return nil, err
	}

	for _, child := range children {
		locked, err := u.tx.GetForUpdate(ctx, child.ID)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}

		if err != nil {
			return nil, err
		}

		below, err := u.lockTree(ctx, locked)
		if err != nil {
			return nil, err
		}

		out.children = append(out.children, below)
	}

	return out, nil
}

// restricted names the active children that keep a tree from being deleted. A kind that is
// not registered any more restricts: nobody would finalize it.
func restricted(tree *node) error {
	var names []string

	for _, n := range tree.all() {
		if n != tree && !n.Deleting() && (n.kind == nil || !n.kind.Cascades()) {
			names = append(names, n.Kind+" "+n.Name)
		}
	}

	if len(names) == 0 {
		return nil
	}

	return problem(CodeInUse, "delete first what is below it: %s", some(names))
}

// all are the nodes of a tree, owners before what they own.
func (n *node) all() []*node {
	out := []*node{n}
	for _, child := range n.children {
		out = append(out, child.all()...)
	}

	return out
}

// ids are those of all in a tree.
func (n *node) ids() []string {
	var out []string
	for _, one := range n.all() {
		out = append(out, one.ID)
	}

	return out
}

// inbound are the references from elsewhere to resources, by their source.
func (u *requestTx) inbound(ctx context.Context, ids []string) ([]store.InboundRef, error) {
	found, err := u.tx.InboundReferences(ctx, ids...)

	return slices.DeleteFunc(found, func(ref store.InboundRef) bool { return slices.Contains(ids, ref.SourceID) }), err
}

// weakly are the resources with weak references to what is in a tree. One that is not weak
// keeps its target.
func (u *requestTx) weakly(ctx context.Context, tree *node) ([]string, error) {
	inbound, err := u.inbound(ctx, tree.ids())
	if err != nil {
		return nil, err
	}

	var weak, keepers []string

	for _, ref := range inbound {
		switch {
		case ref.SourceDeleting:
		case u.isWeak(ref):
			weak = append(weak, ref.SourceID)
		default:
			keepers = append(keepers, fmt.Sprintf("%s %s (%s)", ref.SourceKind, ref.SourceID, ref.Type))
		}
	}

	if len(keepers) > 0 {
		return nil, problem(CodeInUse, "it is referred to by %s", some(keepers))
	}

	return slices.Compact(weak), nil
}

func (u *requestTx) isWeak(ref store.InboundRef) bool {
	kind := u.registry.ByKind(ref.SourceKind)
	if kind == nil {
		return false
	}

	rule, known := kind.Reference(ref.Type)

	return known && rule.Weak
}

// deleteNode deletes from the leaves up, and tells whether the resource is gone at once:
// nobody has to finalize it, and nothing is below it.
func (u *requestTx) deleteNode(ctx context.Context, n *node) (gone bool, err error) {
	left := 0

	for _, child := range n.children {
		childGone := false

		if !child.Deleting() {
			if childGone, err = u.deleteNode(ctx, child); err != nil {
				return false, err
			}
		}

		if !childGone {
			left++
		}
	}

	n.DeletedTime, n.DeletedBy = &u.now, u.caller
	n.UpdatedTime, n.UpdatedBy = u.now, u.caller
	n.Generation++

	if len(n.kind.RequiredAdapters) == 0 && left == 0 {
		return true, u.removeRow(ctx, n.Resource)
	}

	if len(n.References) > 0 {
		if n.References, err = u.tx.SetReferences(ctx, n.ID, nil); err != nil {
			return false, err
		}
	}

	if _, n.Conditions, err = u.derive(ctx, n.kind, n.Resource, left); err != nil {
		return false, err
	}

	if _, err := u.tx.Update(ctx, n.Resource); err != nil {
		return false, err
	}

	return false, u.record(ctx, n.Resource, store.OperationDeleting)
}

func (s *Server) forceDelete(ctx context.Context, at scope, body openapi.ForceDelete) (answer, error) {
	entry, err := write(ctx, s, func(ctx context.Context, u *requestTx) (store.AuditEntry, error) {
		r, err := u.find(ctx, u.tx.GetForUpdate, at)
		if err != nil {
			return store.AuditEntry{}, err
		}

		return u.forceDelete(ctx, r, body.Reason)
	})
	if err != nil {
		return answer{}, err
	}

	s.log.WarnContext(ctx, "a resource was deleted by force, what adapters made for it may be left",
		slog.String("resource", entry.ResourceID), slog.String("kind", entry.Kind), slog.String("name", entry.Name),
		slog.String("caller", entry.Actor), slog.String("reason", entry.Reason), slog.Any("removed", entry.Removed),
		slog.String("requestId", about(ctx).id))

	return answer{status: http.StatusNoContent}, nil
}

// forceDelete removes a resource and all below it. References to it stay: those who have
// one are not reconciled until they are changed.
func (u *requestTx) forceDelete(ctx context.Context, r store.Resource, reason string) (store.AuditEntry, error) {
	if !r.Deleting() {
		return store.AuditEntry{}, problem(CodeState, "%s %s is not being deleted; DELETE it first", r.Kind, r.ID)
	}

	tree, err := u.lockTree(ctx, r)
	if err != nil {
		return store.AuditEntry{}, err
	}

	ids := tree.ids()

	inbound, err := u.inbound(ctx, ids)
	if err != nil {
		return store.AuditEntry{}, err
	}

	if err := u.tx.Remove(ctx, ids...); err != nil {
		return store.AuditEntry{}, err
	}

	for _, n := range slices.Backward(tree.all()) {
		if err := u.record(ctx, n.Resource, store.OperationRemoved); err != nil {
			return store.AuditEntry{}, err
		}
	}

	var referrers []string
	for _, ref := range inbound {
		referrers = append(referrers, ref.SourceID)
	}

	for _, id := range append(slices.Compact(referrers), r.OwnerID) {
		if err := u.lookAgain(ctx, id); err != nil {
			return store.AuditEntry{}, err
		}
	}

	entry := store.AuditEntry{
		At: u.now, Actor: u.caller, Action: "force-delete", Reason: reason, ResourceID: r.ID, Kind: r.Kind, Name: r.Name,
		Removed: ids,
	}

	return entry, u.tx.Audit(ctx, entry)
}

// some names the first of many.
func some(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}

	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}
