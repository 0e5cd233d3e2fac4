// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// readBackAddresses handles a claim whose VM already exists, but has other addresses than the claim's status.
// This happens if the claim was restored without its status and its annotation: the networking area has then
// allocated other addresses. The step writes the addresses of the VM into the annotation, and the networking
// area then uses them for the claim.
func (s *scope) readBackAddresses(ctx context.Context, reserved hypervisor.Reservation, machine hypervisor.Machine) step.Result {
	if !reserved.Exists || s.template.Spec.Network.AddressPool() == nil {
		return step.Done()
	}

	recorded := s.claim.Status.NetworkInfo.Addresses

	actual := normalizeAddresses(reserved.Addresses)
	if len(actual) == 0 {
		actual = completeAddress(machine.IP, recorded)
	}

	allocated := meta.FindStatusCondition(s.claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)

	switch {
	case len(actual) == 0 && allocated != nil && allocated.Reason == v1alpha1.ReasonAddressesReadBack:
		return step.Done() // a person has written them into the annotation
	case len(actual) == 0:
		return step.Stall(v1alpha1.ReasonAddressesUnknown, fmt.Sprintf(
			"VM %d on node %s exists, and its addresses are unknown: read them in the machine, and write them down with "+
				"kubectl annotate machineclaim %s -n %s --overwrite %s=ADDRESS/PREFIXLENGTH",
			reserved.ID, reserved.Node, s.claim.Name, s.claim.Namespace, v1alpha1.AnnotationAddresses))
	case slices.Equal(actual, normalizeAddresses(recorded)):
		return step.Done()
	}

	changed := s.claim.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}

	changed.Annotations[v1alpha1.AnnotationAddresses] = strings.Join(actual, ",")

	before := s.claim.DeepCopy()
	before.Status, changed.Status = v1alpha1.MachineClaimStatus{}, v1alpha1.MachineClaimStatus{}

	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, changed, patch); err != nil {
		return step.Fail(fmt.Errorf("write addresses of VM %d into annotations of claim %s: %w", reserved.ID, s.claim.Name, err))
	}

	s.claim.ResourceVersion, s.claim.Annotations = changed.ResourceVersion, changed.Annotations

	return step.Wait(time.Second, v1alpha1.ReasonAddressesReadBack,
		fmt.Sprintf("VM %d was created with %s, and the claim has %s",
			reserved.ID, strings.Join(actual, " "), strings.Join(recorded, " ")))
}

// nameAddresses prefixes the error that another machine has one of the addresses with the addresses of spec.
// The networking area replaces exactly these addresses. The claim may have other addresses by then.
func nameAddresses(err error, spec hypervisor.MachineSpec) error {
	if e, ok := errors.AsType[*hypervisor.Error](err); !ok || e.Reason != hypervisor.ReasonAddressInUse {
		return err
	}

	return fmt.Errorf("%s: %w", strings.Join(spec.Network.Addresses, " "), err)
}

// normalizeAddresses returns addresses in the form of those in a status, because a person or another program may have
// written them. It returns none if one has no prefix length.
func normalizeAddresses(addresses []string) []string {
	out := make([]string, 0, len(addresses))

	for _, text := range addresses {
		address, err := netip.ParsePrefix(text)
		if err != nil {
			return nil
		}

		out = append(out, address.String())
	}

	return out
}

// completeAddress returns the address that a guest reports with the prefix length of its pool, which the allocated
// address has. It returns none if the machine has addresses of two families, because a guest reports one.
func completeAddress(reported string, allocated []string) []string {
	address, err := netip.ParseAddr(reported)
	if err != nil || len(allocated) != 1 {
		return nil
	}

	prefix, err := netip.ParsePrefix(allocated[0])
	if err != nil || !prefix.Masked().Contains(address) {
		return nil
	}

	return []string{netip.PrefixFrom(address, prefix.Bits()).String()}
}
