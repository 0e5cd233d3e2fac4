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

// supportedVersionsName is the name of HyperShift's ConfigMap, and of the key in it, with the OpenShift
// minor versions that HyperShift can run (hypershift-operator/controllers/supportedversion).
const supportedVersionsName = "supported-versions"

// validateReleaseImage checks that HyperShift can run the release's version and that the registry has
// the image. If the HostedCluster already has the image, nothing is checked, so that an unavailable
// registry does not affect a running cluster.
func validateReleaseImage(ctx context.Context, s *scope) step.Result {
	image := s.bridge.Spec.OCPReleaseImage
	if s.hostedCluster != nil && hypershift.Image(s.hostedCluster) == image {
		return step.Done().WithReason(v1alpha1.ReasonValid, "the HostedCluster already has the image")
	}

	if ref, err := release.Parse(image); err == nil {
		if result := s.checkVersionSupported(ctx, ref); !result.IsDone() {
			return result
		}

		// The pull secret names its registries, and no other registry gets one of its logins.
		if _, hasLogin := s.secrets.logins.LoginFor(ref.Registry + "/" + ref.Repository); hasLogin {
			if err := credential.CheckDestination(&s.secrets.pullSecret, credential.NewDestination(ref.Registry), nil); err != nil {
				return step.FromError(err, resyncInterval)
			}
		}
	}

	if err := s.Images.Check(ctx, image, s.secrets.logins, s.secrets.pullSecretVersion); err != nil {
		return step.FromError(err, resyncInterval)
	}

	return step.Done().WithReason(v1alpha1.ReasonValid, "the registry has the image, and the pull secret may read it")
}

// checkVersionSupported checks that HyperShift's list has the release's minor version. If there is no
// list, or the image's tag has no version, it checks nothing.
func (s *scope) checkVersionSupported(ctx context.Context, ref release.Reference) step.Result {
	minor, hasVersion := ref.MinorVersion()
	if !hasVersion {
		return step.Done()
	}

	var supported corev1.ConfigMap

	err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: s.HyperShiftNamespace, Name: supportedVersionsName}, &supported)
	if apierrors.IsNotFound(err) {
		return step.Done()
	}

	if err != nil {
		return step.Fail(fmt.Errorf("get ConfigMap %s/%s: %w", s.HyperShiftNamespace, supportedVersionsName, err))
	}

	var content struct {
		Versions []string `json:"versions"`
	}
	if err := json.Unmarshal([]byte(supported.Data[supportedVersionsName]), &content); err != nil || len(content.Versions) == 0 {
		return step.Done()
	}

	if slices.Contains(content.Versions, minor) {
		return step.Done()
	}

	return step.Stall(v1alpha1.ReasonVersionNotSupported, fmt.Sprintf(
		"HyperShift does not support OpenShift %s: choose an image of version %s, or upgrade HyperShift",
		minor, strings.Join(content.Versions, ", ")))
}
