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

// maxNames is the maximum number of resources that an error names.
const maxNames = 10

// node is a locked resource with its locked children.
type node struct {
	store.Resource

	kind     *entity.Kind
	children []*node
	// orphans are the children that stay without an owner. The resources below them are not locked.
	orphans []store.Resource
}

func (s *Server) deleteResource(r *http.Request) (response, error) {
	return s.changeResource(r.Context(), http.StatusAccepted,
		func(ctx context.Context, u *requestTx, r store.Resource) (store.Resource, error) {
			return u.delete(ctx, r)
		})
}

// delete requests the deletion of a resource and of all resources to which the deletion cascades.
func (u *requestTx) delete(ctx context.Context, r store.Resource) (store.Resource, error) {
	if _, err := u.registeredKind(r); err != nil {
		return r, err
	}

	if r.IsDeleting() {
		return r, nil
	}

	tree, err := u.lockTree(ctx, r)
	if err != nil {
		return r, err
	}

	if err := checkRestricted(tree); err != nil {
		return r, err
	}

	referrers, err := u.findWeakReferrers(ctx, tree)
	if err != nil {
		return r, err
	}

	isRemoved, err := u.deleteNode(ctx, tree)
	if err != nil {
		return r, err
	}

	for _, id := range referrers {
		if err := u.recompute(ctx, id); err != nil {
			return r, err
		}
	}

	if isRemoved {
		err = u.recompute(ctx, tree.OwnerID)
	}

	return tree.Resource, err
}

// lockTree locks the resources below a resource, owners before the resources that they own. Once an
// owner is locked, no child can be added to it.
func (u *requestTx) lockTree(ctx context.Context, r store.Resource) (*node, error) {
	out := &node{Resource: r, kind: u.registry.ByKind(r.Kind)}

	children, err := u.tx.Children(ctx, r.ID)
	if err != nil {
		return nil, err
	}

	for _, child := range children {
		locked, err := u.tx.GetForUpdate(ctx, child)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}

		if err != nil {
			return nil, err
		}

		if kind := u.registry.ByKind(locked.Kind); kind != nil && kind.IsOrphan() && !r.IsDeleting() && !locked.IsDeleting() {
			out.orphans = append(out.orphans, locked)

			continue
		}

		subtree, err := u.lockTree(ctx, locked)
		if err != nil {
			return nil, err
		}

		out.children = append(out.children, subtree)
	}

	return out, nil
}

// checkRestricted returns an error that names the active children that prevent the deletion of a
// tree. A kind that is no longer registered counts as restrict, because nothing would finalize its
// resources.
func checkRestricted(tree *node) error {
	var names []string

	for _, n := range tree.nodes() {
		if n != tree && !n.IsDeleting() && (n.kind == nil || !n.kind.IsCascade()) {
			names = append(names, n.Kind+" "+n.Name)
		}
	}

	if len(names) == 0 {
		return nil
	}

	return newProblem(CodeInUse, "delete its children first: %s", formatNames(names))
}

// nodes returns the nodes of a tree, owners before the resources that they own.
func (n *node) nodes() []*node {
	out := []*node{n}
	for _, child := range n.children {
		out = append(out, child.nodes()...)
	}

	return out
}

// ids returns the IDs of all resources in a tree.
func (n *node) ids() []string {
	var out []string
	for _, descendant := range n.nodes() {
		out = append(out, descendant.ID)
	}

	return out
}

// listInbound returns the references to resources from outside of this set, ordered by their
// source.
func (u *requestTx) listInbound(ctx context.Context, ids []string) ([]store.InboundRef, error) {
	found, err := u.tx.InboundReferences(ctx, ids...)

	return slices.DeleteFunc(found, func(ref store.InboundRef) bool { return slices.Contains(ids, ref.SourceID) }), err
}

// findWeakReferrers returns the IDs of the resources that have weak references to resources in a
// tree. If there are other references, it returns an error, because they prevent the deletion.
func (u *requestTx) findWeakReferrers(ctx context.Context, tree *node) ([]string, error) {
	inbound, err := u.listInbound(ctx, tree.ids())
	if err != nil {
		return nil, err
	}

	var weak, blockers []string

	for _, ref := range inbound {
		switch {
		case ref.SourceDeleting:
		case u.isWeak(ref):
			weak = append(weak, ref.SourceID)
		default:
			blockers = append(blockers, fmt.Sprintf("%s %s (%s)", ref.SourceKind, ref.SourceID, ref.Type))
		}
	}

	if len(blockers) > 0 {
		return nil, newProblem(CodeInUse, "it is referenced by %s", formatNames(blockers))
	}

	return slices.Compact(weak), nil
}

func (u *requestTx) isWeak(ref store.InboundRef) bool {
	kind := u.registry.ByKind(ref.SourceKind)
	if kind == nil {
		return false
	}

	rule, isKnown := kind.ReferenceRule(ref.Type)

	return isKnown && rule.Weak
}

// deleteNode deletes from the leaves to the root. It returns true if the resource was removed
// immediately, because its kind has no required adapters and no child remains.
func (u *requestTx) deleteNode(ctx context.Context, n *node) (isRemoved bool, err error) {
	if err := u.releaseOrphans(ctx, n); err != nil {
		return false, err
	}

	remaining := 0

	for _, child := range n.children {
		isChildGone := false

		if !child.IsDeleting() {
			if isChildGone, err = u.deleteNode(ctx, child); err != nil {
				return false, err
			}
		}

		if !isChildGone {
			remaining++
		}
	}

	n.DeletedTime, n.DeletedBy = &u.now, u.caller
	n.UpdatedTime, n.UpdatedBy = u.now, u.caller
	n.Generation++

	if len(n.kind.RequiredAdapters) == 0 && remaining == 0 {
		return true, u.removeResource(ctx, n.Resource)
	}

	if len(n.References) > 0 {
		if n.References, err = u.tx.SetReferences(ctx, n.ID, nil); err != nil {
			return false, err
		}
	}

	if _, n.Conditions, err = u.deriveConditions(ctx, n.kind, n.Resource, remaining); err != nil {
		return false, err
	}

	n.Resource, err = u.tx.Update(ctx, n.Resource)
	u.tx.RecordChange(n.Resource, store.OperationDeleting)

	return false, err
}

// releaseOrphans removes the owner of the children that stay. They keep their generation, so no adapter changes anything.
func (u *requestTx) releaseOrphans(ctx context.Context, n *node) error {
	for _, child := range n.orphans {
		err := u.tx.ClearOwner(ctx, child.ID)
		if errors.Is(err, store.ErrExists) {
			return newProblem(CodeInUse, "%s %s would have no owner, and another one without an owner has the same name: "+
				"delete one of them", child.Kind, child.Name)
		}

		if err != nil {
			return err
		}

		child.OwnerID, child.OwnerKind = "", ""
		u.tx.RecordChange(child, store.OperationUpdated)
	}

	return nil
}

func (s *Server) forceDeleteResource(r *http.Request) (response, error) {
	ctx := r.Context()

	body, err := decodeBody[openapi.ForceDelete](r)
	if err != nil {
		return response{}, err
	}

	entry, err := runTx(ctx, s, func(ctx context.Context, u *requestTx) (store.AuditEntry, error) {
		found, err := u.findResource(ctx, u.tx.GetForUpdate, requestFromContext(ctx).scope)
		if err != nil {
			return store.AuditEntry{}, err
		}

		entry, err := u.forceDelete(ctx, found, body.Reason)
		if err != nil {
			return entry, err
		}

		return entry, u.checkIfMatch(ctx, found)
	})
	if err != nil {
		return response{}, err
	}

	s.log.WarnContext(ctx, "deleted a resource by force: objects that adapters created for it may remain",
		slog.String("resource", entry.ResourceID), slog.String("kind", entry.Kind), slog.String("name", entry.Name),
		slog.String("caller", entry.Actor), slog.String("reason", entry.Reason), slog.Any("removed", entry.Removed),
		slog.String("requestId", requestFromContext(ctx).id))

	return response{status: http.StatusNoContent}, nil
}

// forceDelete removes a resource and everything below it. References to it stay. Resources with
// such a reference are not reconciled until the reference is changed.
func (u *requestTx) forceDelete(ctx context.Context, r store.Resource, reason string) (store.AuditEntry, error) {
	if !r.IsDeleting() {
		return store.AuditEntry{}, newProblem(CodeState, "%s %s is not being deleted: send DELETE first", r.Kind, r.ID)
	}

	tree, err := u.lockTree(ctx, r)
	if err != nil {
		return store.AuditEntry{}, err
	}

	ids := tree.ids()

	inbound, err := u.listInbound(ctx, ids)
	if err != nil {
		return store.AuditEntry{}, err
	}

	if err := u.tx.Remove(ctx, ids...); err != nil {
		return store.AuditEntry{}, err
	}

	for _, n := range slices.Backward(tree.nodes()) {
		u.tx.RecordChange(n.Resource, store.OperationRemoved)
	}

	var referrers []string
	for _, ref := range inbound {
		referrers = append(referrers, ref.SourceID)
	}

	for _, id := range append(slices.Compact(referrers), r.OwnerID) {
		if err := u.recompute(ctx, id); err != nil {
			return store.AuditEntry{}, err
		}
	}

	entry := store.AuditEntry{
		At: u.now, Actor: u.caller, Action: "force-delete", Reason: reason, ResourceID: r.ID, Kind: r.Kind, Name: r.Name,
		Removed: ids,
	}

	return entry, u.tx.Audit(ctx, entry)
}

// formatNames returns the first maxNames names, and the number of the others.
func formatNames(names []string) string {
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}

	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}
