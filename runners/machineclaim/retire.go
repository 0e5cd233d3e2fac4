// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// retire hands a claim whose machine has run to its deletion.
func retire(ctx context.Context, s *scope) step.Result {
	return s.remove(ctx, "Retiring", "the machine has run: "+s.claim.Status.EndReason)
}

// remove deletes the claim itself. Why is put on record first: the object's own status
// is all that the deletion steps know.
func (s *scope) remove(ctx context.Context, reason, message string) step.Result {
	result := step.Wait(0, reason, message)
	if err := step.SaveAs(ctx, result); err != nil {
		return step.Fail(err)
	}

	err := s.Client.Delete(ctx, s.claim.DeepCopy(), client.Preconditions{UID: &s.claim.UID},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(fmt.Errorf("delete claim %s: %w", client.ObjectKeyFromObject(s.claim), err))
	}

	return result
}
