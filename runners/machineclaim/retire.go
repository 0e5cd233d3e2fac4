// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// retire deletes a claim whose machine has run.
func retire(ctx context.Context, s *scope) step.Result {
	return s.deleteClaim(ctx, "Retiring", "the machine has ended: "+s.claim.Status.EndReason)
}

// deleteClaim deletes the claim, unless its failed machine must be kept. It first writes the status with
// the reason, because the deletion steps read nothing else.
func (s *scope) deleteClaim(ctx context.Context, reason, message string) step.Result {
	if result := s.keepFailed(ctx); !result.IsDone() {
		return result
	}

	result := step.Wait(0, reason, message)
	if s.retired.has(s.claim) {
		return result // the claim is deleted, but the cache does not show the deletion yet
	}

	if err := step.SaveStatusWithResult(ctx, result); err != nil {
		return step.Fail(err)
	}

	err := s.Client.Delete(ctx, s.claim.DeepCopy(), client.Preconditions{UID: &s.claim.UID},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(fmt.Errorf("delete claim %s: %w", client.ObjectKeyFromObject(s.claim), err))
	}

	s.retired.add(s.claim)

	return result
}

// claimSet is a set of claims. It is safe for concurrent use. The zero value is ready to use.
type claimSet struct {
	mu     sync.Mutex
	claims map[types.NamespacedName]types.UID
}

func (r *claimSet) add(claim *v1alpha1.MachineClaim) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.claims == nil {
		r.claims = map[types.NamespacedName]types.UID{}
	}

	r.claims[client.ObjectKeyFromObject(claim)] = claim.UID
}

func (r *claimSet) has(claim *v1alpha1.MachineClaim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.claims[client.ObjectKeyFromObject(claim)] == claim.UID
}

// forget removes a claim from the set.
func (r *claimSet) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.claims, name)
}
