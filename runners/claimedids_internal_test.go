// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners

import (
	"context"
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// claimReader has one claim in each namespace, with the VM ID of the map.
type claimReader struct {
	client.Reader

	ids map[string]string
}

func (r claimReader) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	applied := client.ListOptions{}
	applied.ApplyOptions(options)

	claims, _ := list.(*v1alpha1.MachineClaimList)

	for namespace, id := range r.ids {
		if applied.Namespace == "" || applied.Namespace == namespace {
			claim := v1alpha1.MachineClaim{}
			claim.Status.VMRef = &v1alpha1.VMReference{VMID: id}
			claims.Items = append(claims.Items, claim)
		}
	}

	return nil
}

// An operator holds only the IDs of its own claims. It does not see the deletion of the claims of others, so it could
// not use their IDs until its next start.
func TestClaimedIDsAreThoseOfTheNamespaces(t *testing.T) {
	t.Parallel()

	reader := claimReader{ids: map[string]string{"team-a": "100", "team-b": "101", "team-c": "uuid"}}

	for _, tc := range []struct {
		namespaces []string
		want       []int
	}{{nil, []int{100, 101}}, {[]string{"team-a", "team-c"}, []int{100}}} {
		got, err := listClaimedIDs(t.Context(), reader, tc.namespaces)
		slices.Sort(got)

		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("IDs %v of the namespaces %v, want %v (%v)", got, tc.namespaces, tc.want, err)
		}
	}
}
