// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// messageUnsupported is the message of validateHostedClusterSupport.
const messageUnsupported = "operator only supports private clusters in region us-east-1"

// errUnsupportedPlatform is an error of the Sim, not of HyperShift.
var errUnsupportedPlatform = errors.New("the simulator supports only the platform None")

// validate applies HyperShift's validation beyond the CRD's schema. It sets the validation conditions,
// records violations, and returns the version of the release image. If a condition is False, blocked
// says which one and why.
func (h *hostedClusterReconciler) validate(ctx context.Context) (version, blocked string, err error) {
	config, err := h.validateConfig(ctx)
	if err != nil {
		return "", "", err
	}

	reason := reasonInvalidImage

	version, image := h.options.Version(h.readString("spec", "release", "image"))
	if image == nil {
		image = h.validateVersion(version)
	}

	missing, err := h.validateSecret(ctx, h.readString("spec", "pullSecret", "name"), corev1.DockerConfigJsonKey, validatePullSecret)
	if err != nil {
		return "", "", err
	}

	if missing != nil {
		reason, image = reasonSecretNotFound, missing
	}

	var unsupported error
	if h.hasFault(Unsupported, h.key.Name) {
		unsupported = errors.New(messageUnsupported)
	}

	for _, c := range []struct {
		kind, message, reason string
		invalid               error
	}{
		{"SupportedHostedCluster", "HostedCluster is supported by operator configuration", "UnsupportedHostedCluster", unsupported},
		{"ValidReleaseImage", "Release image is valid", reason, image},
		{"ValidConfiguration", "Configuration passes validation", reasonInvalidConfig, config},
	} {
		if c.invalid == nil {
			h.setCondition(c.kind, metav1.ConditionTrue, reasonAsExpected, c.message)

			continue
		}

		h.setCondition(c.kind, metav1.ConditionFalse, c.reason, c.invalid.Error())

		blocked = c.kind + " condition is false: " + c.invalid.Error()

		if unsupported == nil { // an unsupported cluster is due to HyperShift's configuration, not to the client
			h.recordViolation(h.key, c.invalid.Error())
		}
	}

	return version, blocked, nil
}

// validateConfig validates the platform, the Secrets, the publishing strategies and the networks of a
// HostedCluster. invalid says what is not valid. err means that something could not be validated.
func (h *hostedClusterReconciler) validateConfig(ctx context.Context) (invalid, err error) {
	if h.readString("spec", "platform", "type") != "None" {
		return errUnsupportedPlatform, nil
	}

	secrets := []struct {
		name, key string
		check     func([]byte) error
	}{
		{h.readString("spec", "sshKey", "name"), "id_rsa.pub", nil},
		{h.readString("spec", "secretEncryption", "aescbc", "activeKey", "name"), "key", validateEncryptionKey},
	}

	for _, secret := range secrets {
		if secret.name == "" {
			continue
		}

		invalid, err := h.validateSecret(ctx, secret.name, secret.key, secret.check)
		if invalid != nil || err != nil {
			return invalid, err
		}
	}

	for _, service := range []string{"APIServer", "OAuthServer", "Konnectivity", "Ignition"} {
		serviceStrategy, ok := h.findStrategy(service)
		if !ok {
			return fmt.Errorf("service type %s not found", service), nil
		}

		if serviceStrategy.kind == typeNodePort && serviceStrategy.address == "" {
			return fmt.Errorf("nodeport metadata not specified for %s service", service), nil
		}
	}

	return h.validateNetworks(), nil
}

func (h *hostedClusterReconciler) validateSecret(
	ctx context.Context, name, field string, check func([]byte) error,
) (invalid, err error) {
	secret := &corev1.Secret{}

	err = h.client.Get(ctx, types.NamespacedName{Namespace: h.key.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("secret %s/%s not found", h.key.Namespace, name), nil
	}

	if err != nil {
		return nil, fmt.Errorf("get secret %s: %w", name, err)
	}

	data, ok := secret.Data[field]
	if !ok {
		return fmt.Errorf("secret %s/%s must have a %q key", h.key.Namespace, name, field), nil
	}

	if check != nil {
		return check(data), nil
	}

	return nil, nil
}

func validatePullSecret(data []byte) error {
	var config struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	if err := json.Unmarshal(data, &config); err != nil || len(config.Auths) == 0 {
		return errors.New("pull secret has no auths")
	}

	return nil
}

func validateEncryptionKey(data []byte) error {
	const size = 32
	if len(data) != size {
		return fmt.Errorf("aescbc key must be %d bytes long, has %d", size, len(data))
	}

	return nil
}

// validateNetworks returns an error if two networks overlap, as HyperShift's validateSliceNetworkCIDRs does.
func (h *hostedClusterReconciler) validateNetworks() error {
	var all []netip.Prefix

	for _, field := range []string{"machineNetwork", "clusterNetwork", "serviceNetwork"} {
		networks, _, _ := unstructured.NestedSlice(h.object.Object, "spec", "networking", field)

		for _, item := range networks {
			entry, _ := item.(map[string]any)
			text, _ := entry["cidr"].(string)

			network, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("spec.networking.%s: %w", field, err)
			}

			for _, other := range all {
				if other.Overlaps(network) {
					return fmt.Errorf("spec.networking.%s: Invalid value: %q: overlaps with %s", field, network, other)
				}
			}

			all = append(all, network)
		}
	}

	return nil
}
