// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// ListClaimed lists the machines in the status of the MachineClaims in the operator's namespaces. It skips IDs that are not
// numbers. It does not list machines of other operators, because this operator would never know when their IDs are free
// again. It lists the IDs of all clusters, and what the machines of one cluster will use that were placed and not started.
func ListClaimed(
	ctx context.Context, reader client.Reader, namespaces []string, cluster string,
) ([]hypervisor.ClaimedMachine, error) {
	var (
		out    []hypervisor.ClaimedMachine
		placed = map[int]*v1alpha1.MachineClaim{} // by the index in out
	)

	err := watch.ForEachIn(ctx, reader, namespaces, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) {
		if ref := claim.Status.VMRef; ref != nil {
			if id, err := strconv.Atoi(ref.VMID); err == nil {
				if ref.HypervisorCluster == cluster && willStart(claim) {
					placed[len(out)] = claim.DeepCopy()
				}

				out = append(out, hypervisor.ClaimedMachine{ID: id})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list machine claims: %w", err)
	}

	templates := map[client.ObjectKey]*v1alpha1.HypervisorMachineTemplate{}

	for i, claim := range placed {
		name := client.ObjectKey{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name}

		template, isRead := templates[name]
		if !isRead {
			template = &v1alpha1.HypervisorMachineTemplate{}
			if err := reader.Get(ctx, name, template); apierrors.IsNotFound(err) {
				template = nil
			} else if err != nil {
				return nil, fmt.Errorf("get template %s: %w", name, err)
			}

			templates[name] = template
		}

		if template != nil { // without its template, the machine cannot be created
			addResources(claim, template.DeepCopy(), &out[i])
		}
	}

	return out, nil
}

// willStart reports whether the claim has a node on which its machine will start. It is pure.
func willStart(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times
	isStarted := times != nil && (times.Started != nil || times.Ended != nil)

	return claim.Status.VMRef.Node != "" && !claim.Spec.Standby && !isStarted && claim.DeletionTimestamp.IsZero()
}

// addResources adds the node and the resources of a claim's machine. It changes the template.
func addResources(
	claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate, machine *hypervisor.ClaimedMachine,
) {
	applySize(template, claim.Spec.Size)
	applyPlacedSize(template, claim.Status.VMRef)

	shape := vmspec.NewShape(template)
	machine.Node, machine.OwnerUID = claim.Status.VMRef.Node, string(claim.UID)
	machine.CPU, machine.Memory, machine.Devices = shape.CPU, shape.Memory, shape.Devices
}
