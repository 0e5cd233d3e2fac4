// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/bridge/release"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// supportedVersions is HyperShift's ConfigMap, and the key in it, with the minor versions
// that it can run (hypershift-operator/controllers/supportedversion).
const supportedVersions = "supported-versions"

// releaseImageValid asks the registry for the release image, and HyperShift whether it can
// run that version. What the HostedCluster has already is not asked for again: a registry
// that is down does no harm to a cluster that runs.
func releaseImageValid(ctx context.Context, s *scope) step.Result {
	image := s.bridge.Spec.OCPReleaseImage
	if s.cluster != nil && hypershift.Image(s.cluster) == image {
		return step.Done().WithReason(v1alpha1.ReasonValid, "the HostedCluster has the image")
	}

	if ref, err := release.Parse(image); err == nil {
		if result := s.versionSupported(ctx, ref); !result.IsDone() {
			return result
		}

		// The pull secret names its registries itself; no other gets a login of it.
		if _, has := s.secrets.logins.For(ref.Registry + "/" + ref.Repository); has {
			if err := credential.Check(&s.secrets.pull, credential.To(ref.Registry), nil); err != nil {
				return step.ForError(err, lookAgain)
			}
		}
	}

	if err := s.Images.Check(ctx, image, s.secrets.logins, s.secrets.version); err != nil {
		return step.ForError(err, lookAgain)
	}

	return step.Done().WithReason(v1alpha1.ReasonValid, "the registry has the image, and the pull secret may read it")
}

// versionSupported compares a release's version with HyperShift's list. Without a list, or
// without a version in the image's tag, there is nothing to compare.
func (s *scope) versionSupported(ctx context.Context, ref release.Reference) step.Result {
	minor, told := ref.Minor()
	if !told {
		return step.Done()
	}

	var supported corev1.ConfigMap

	err := s.Live.Get(ctx, client.ObjectKey{Namespace: s.HyperShiftNamespace, Name: supportedVersions}, &supported)
	if apierrors.IsNotFound(err) {
		return step.Done()
	}

	if err != nil {
		return step.Fail(fmt.Errorf("get ConfigMap %s/%s: %w", s.HyperShiftNamespace, supportedVersions, err))
	}

	var content struct {
		Versions []string `json:"versions"`
	}
	if err := json.Unmarshal([]byte(supported.Data[supportedVersions]), &content); err != nil || len(content.Versions) == 0 {
		return step.Done()
	}

	if slices.Contains(content.Versions, minor) {
		return step.Done()
	}

	return step.Stall(v1alpha1.ReasonVersionNotSupported, fmt.Sprintf(
		"HyperShift does not run OpenShift %s: choose an image of %s, or upgrade HyperShift",
		minor, strings.Join(content.Versions, ", ")))
}
