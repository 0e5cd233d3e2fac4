// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// kind is one of the two servers. It is the name of the settings, too.
type kind string

const (
	kindForgejo kind = "forgejo"
	kindGitea   kind = "gitea"
)

// String is the server's name for people.
func (k kind) String() string {
	if k == kindForgejo {
		return "Forgejo"
	}

	return "Gitea"
}

func (k kind) workload() string {
	if k == kindForgejo {
		return v1alpha1.WorkloadForgejoActions
	}

	return v1alpha1.WorkloadGiteaActions
}

// reason is a reason of errors, for conditions and events.
func (k kind) reason(what string) string { return k.String() + what }

// Oldest servers that have the calls made here.
const (
	leastForgejo = 15
	leastGitea   = 26 // 1.26
)

// checkVersion refuses a server of the other kind, and one that is too old. Versions that
// can't be read, such as those of builds in between releases, are believed.
func (k kind) checkVersion(version string) error {
	if forgejo := strings.Contains(version, "+gitea-"); forgejo != (k == kindForgejo) {
		other := kindForgejo
		if k == kindForgejo {
			other = kindGitea
		}

		return workload.Reject(k.reason(reasonConfig), fmt.Sprintf(
			"the server is %s (version %s): use workload.type %s, and %s in the place of %s "+
				"in workload.config and bootstrap.config", other, version, other.workload(), string(other), string(k)))
	}

	numbers := strings.SplitN(version, ".", 3)

	major, err := strconv.Atoi(numbers[0])
	if err != nil {
		return nil //nolint:nilerr // not a release's
	}

	switch {
	case k == kindForgejo && major < leastForgejo:
		return workload.Reject(k.reason(reasonVersion), fmt.Sprintf(
			"Forgejo %s has no ephemeral runners and no handles of jobs: update it to %d or newer", version, leastForgejo))
	case k == kindGitea && major == 1 && len(numbers) > 1:
		if minor, err := strconv.Atoi(numbers[1]); err == nil && minor < leastGitea {
			return workload.Reject(k.reason(reasonVersion),
				fmt.Sprintf("Gitea %s can't disable runners by its API: update it to 1.%d or newer",
					version, leastGitea))
		}
	}

	return nil
}
