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

// messageUnsupported is validateHostedClusterSupport's.
const messageUnsupported = "operator only supports private clusters in region us-east-1"

// errNoPlatform is of the Sim, not of HyperShift.
var errNoPlatform = errors.New("only the platform None is played")

// check tells what HyperShift does not take beyond its schema, as conditions and as a
// violation, and gives the version that is wanted.
func (h *hosted) check(ctx context.Context) (version, blocked string, err error) {
	config, err := h.checkConfig(ctx)
	if err != nil {
		return "", "", err
	}

	reason := reasonInvalidImage

	version, image := h.options.Version(h.string("spec", "release", "image"))
	if image == nil {
		image = h.checkVersion(version)
	}

	missing, err := h.checkSecret(ctx, h.string("spec", "pullSecret", "name"), corev1.DockerConfigJsonKey, pullSecret)
	if err != nil {
		return "", "", err
	}

	if missing != nil {
		reason, image = reasonSecretNotFound, missing
	}

	var unsupported error
	if h.has(Unsupported, h.key.Name) {
		unsupported = errors.New(messageUnsupported)
	}

	for _, c := range []struct {
		kind, yes, reason string
		invalid           error
	}{
		{"SupportedHostedCluster", "HostedCluster is supported by operator configuration", "UnsupportedHostedCluster", unsupported},
		{"ValidReleaseImage", "Release image is valid", reason, image},
		{"ValidConfiguration", "Configuration passes validation", reasonInvalidConfig, config},
	} {
		if c.invalid == nil {
			h.say(c.kind, metav1.ConditionTrue, reasonAsExpected, c.yes)

			continue
		}

		h.say(c.kind, metav1.ConditionFalse, c.reason, c.invalid.Error())

		blocked = c.kind + " condition is false: " + c.invalid.Error()

		if unsupported == nil { // that one is about HyperShift, not about the HostedCluster
			h.violation(h.key, c.invalid.Error())
		}
	}

	return version, blocked, nil
}

// checkConfig looks at what HyperShift reads besides the HostedCluster.
func (h *hosted) checkConfig(ctx context.Context) (invalid, err error) {
	if h.string("spec", "platform", "type") != "None" {
		return errNoPlatform, nil
	}

	secrets := []struct {
		name, key string
		check     func([]byte) error
	}{
		{h.string("spec", "sshKey", "name"), "id_rsa.pub", nil},
		{h.string("spec", "secretEncryption", "aescbc", "activeKey", "name"), "key", encryptionKey},
	}

	for _, secret := range secrets {
		if secret.name == "" {
			continue
		}

		invalid, err := h.checkSecret(ctx, secret.name, secret.key, secret.check)
		if invalid != nil || err != nil {
			return invalid, err
		}
	}

	for _, service := range []string{"APIServer", "OAuthServer", "Konnectivity", "Ignition"} {
		published, ok := h.strategy(service)
		if !ok {
			return fmt.Errorf("service type %s not found", service), nil
		}

		if published.kind == typeNodePort && published.address == "" {
			return fmt.Errorf("nodeport metadata not specified for %s service", service), nil
		}
	}

	return h.checkNetworks(), nil
}

func (h *hosted) checkSecret(ctx context.Context, name, field string, check func([]byte) error) (invalid, err error) {
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

func pullSecret(data []byte) error {
	var config struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	if err := json.Unmarshal(data, &config); err != nil || len(config.Auths) == 0 {
		return errors.New("pull secret has no auths")
	}

	return nil
}

func encryptionKey(data []byte) error {
	const size = 32
	if len(data) != size {
		return fmt.Errorf("aescbc key must be %d bytes long, has %d", size, len(data))
	}

	return nil
}

// checkNetworks is validateSliceNetworkCIDRs: no two networks overlap.
func (h *hosted) checkNetworks() error {
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
