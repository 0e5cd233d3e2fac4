// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/generic"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/github"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// Platforms returns the supported CI platforms by workload type.
func Platforms() map[string]workload.Platform {
	return map[string]workload.Platform{
		v1alpha1.WorkloadBuildkite:      buildkite.Platform{},
		v1alpha1.WorkloadForgejoActions: gitea.Forgejo(),
		v1alpha1.WorkloadGiteaActions:   gitea.Gitea(),
		v1alpha1.WorkloadGeneric:        generic.Platform{},
		v1alpha1.WorkloadGitHubActions:  github.NewPlatform(),
		v1alpha1.WorkloadGitLabCI:       gitlab.Platform{},
	}
}
