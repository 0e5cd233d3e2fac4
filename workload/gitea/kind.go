// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"fmt"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// kind is one of the two servers. Its value is also the key of the server's settings.
type kind string

const (
	kindForgejo kind = "forgejo"
	kindGitea   kind = "gitea"
)

// String returns the server's name for people.
func (k kind) String() string {
	if k == kindForgejo {
		return "Forgejo"
	}

	return "Gitea"
}

func (k kind) workloadType() string {
	if k == kindForgejo {
		return v1alpha1.WorkloadForgejoActions
	}

	return v1alpha1.WorkloadGiteaActions
}

// newReason returns the reason of an error, with the server's name as prefix.
func (k kind) newReason(suffix string) string { return k.String() + suffix }

// Oldest versions that have all API calls that this package uses.
const (
	minForgejoMajor = 15
	minGiteaMinor   = 26 // 1.26
)

// checkVersion returns an error if the server is of the other kind or too old. It accepts versions
// that it cannot parse, such as those of builds between releases.
func (k kind) checkVersion(version string) error {
	if isForgejo := strings.Contains(version, "+gitea-"); isForgejo != (k == kindForgejo) {
		otherKind := kindForgejo
		if k == kindForgejo {
			otherKind = kindGitea
		}

		return workload.NewRejected(k.newReason(reasonConfig), fmt.Sprintf(
			"the server is %s (version %s): set workload.type to %s, and use %s instead of %s "+
				"in workload.config and bootstrap.config", otherKind, version, otherKind.workloadType(), string(otherKind), string(k)))
	}

	parsed, err := utilversion.ParseGeneric(version)
	if err != nil {
		return nil //nolint:nilerr // not a release
	}

	switch {
	case k == kindForgejo && parsed.Major() < minForgejoMajor:
		return workload.NewRejected(k.newReason(reasonVersion), fmt.Sprintf(
			"Forgejo %s has no ephemeral runners and no job handles: update Forgejo to version %d or later", version, minForgejoMajor))
	case k == kindGitea && parsed.LessThan(utilversion.MajorMinor(1, minGiteaMinor)):
		return workload.NewRejected(k.newReason(reasonVersion), fmt.Sprintf(
			"Gitea %s cannot disable runners through its API: update Gitea to version 1.%d or later", version, minGiteaMinor))
	}

	return nil
}
