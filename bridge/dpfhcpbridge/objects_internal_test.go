// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// TestRefusedWrites checks that a person has to act after a write that the API server refuses, except if a ResourceQuota
// is used up.
func TestRefusedWrites(t *testing.T) {
	t.Parallel()

	clusters := schema.GroupResource{Group: "hypershift.openshift.io", Resource: "hostedclusters"}

	for cause, want := range map[error]errclass.Class{
		apierrors.NewForbidden(clusters, "a", errors.New("exceeded quota: few")): errclass.Resource,
		apierrors.NewForbidden(clusters, "a", errors.New("no permission")):       errclass.Configuration,
		apierrors.NewBadRequest("unknown field"):                                 errclass.Configuration,
		apierrors.NewTooManyRequestsError("busy"):                                errclass.Transient,
	} {
		err := (&scope{}).newWriteError(cause, "create", hypershift.NewObject(schema.GroupVersionKind{Kind: "HostedCluster"}), "HostedClusterFailed")
		if got := errclass.ClassOf(err); got != want || errclass.ReasonOf(err, "") != "HostedClusterFailed" {
			t.Errorf("%v: class %s, want %s", cause, got, want)
		}
	}
}
