// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/base64"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Volume labels that cloud-init looks for.
const (
	labelNoCloud     = "cidata"
	labelConfigDrive = "config-2"
)

// Names of the files of a cloud-init ISO.
const (
	fileUser    = "user-data"
	fileMeta    = "meta-data"
	fileNetwork = "network-config"
)

// Names of the files of a config drive.
const (
	fileOpenStackUser    = "openstack/latest/user_data"
	fileOpenStackNetwork = "openstack/latest/network_data.json"
)

// loadDrive returns the files of the instance's cloud-init ISO or config drive, nil if it has none. It
// fails if a Secret does not exist.
func (c *Cluster) loadDrive(ctx context.Context, instance *virtv1.VirtualMachineInstance) (map[string][]byte, error) {
	for _, v := range instance.Spec.Volumes {
		switch {
		case v.CloudInitNoCloud != nil:
			s := v.CloudInitNoCloud

			return c.loadCloudInit(ctx, instance, fileUser, fileNetwork, cloudInitSource{
				s.UserDataSecretRef, s.UserDataBase64, s.UserData,
				s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData,
			})
		case v.CloudInitConfigDrive != nil:
			s := v.CloudInitConfigDrive

			return c.loadCloudInit(ctx, instance, fileOpenStackUser, fileOpenStackNetwork, cloudInitSource{
				s.UserDataSecretRef, s.UserDataBase64, s.UserData,
				s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData,
			})
		case v.Secret != nil && (v.Secret.VolumeLabel == labelNoCloud || v.Secret.VolumeLabel == labelConfigDrive):
			return c.loadSecret(ctx, instance.Namespace, v.Secret.SecretName)
		}
	}

	return nil, nil //nolint:nilnil // nil means that there is no drive
}

// cloudInitSource holds the fields that both of KubeVirt's cloud-init volume types have.
type cloudInitSource struct {
	userRef              *corev1.LocalObjectReference
	userBase64, userText string
	networkRef           *corev1.LocalObjectReference
	networkBase64        string
	networkText          string
}

func (c *Cluster) loadCloudInit(
	ctx context.Context, instance *virtv1.VirtualMachineInstance, userFile, networkFile string, from cloudInitSource,
) (map[string][]byte, error) {
	files := map[string][]byte{}

	// virt-launcher accepts both spellings of the keys (pkg/cloud-init/cloud-init.go).
	user, err := c.loadPart(ctx, instance.Namespace, from.userRef, from.userBase64, from.userText, "userdata", "userData")
	if err != nil {
		return nil, err
	}

	network, err := c.loadPart(ctx, instance.Namespace, from.networkRef, from.networkBase64, from.networkText,
		"networkdata", "networkData")
	if err != nil {
		return nil, err
	}

	files[userFile] = user
	if userFile == fileUser {
		files[fileMeta] = fmt.Appendf(nil, "instance-id: %s.%s\nlocal-hostname: %s\n",
			instance.Name, instance.Namespace, hostnameOf(instance))
	}

	if network != nil {
		files[networkFile] = network
	}

	return files, nil
}

func hostnameOf(instance *virtv1.VirtualMachineInstance) string {
	if instance.Spec.Hostname != "" {
		return instance.Spec.Hostname
	}

	return instance.Name
}

func (c *Cluster) loadPart(
	ctx context.Context, namespace string, ref *corev1.LocalObjectReference, encoded, text string, keys ...string,
) ([]byte, error) {
	if ref != nil {
		data, err := c.loadSecret(ctx, namespace, ref.Name)
		if err != nil {
			return nil, err
		}

		for _, key := range keys {
			if value, ok := data[key]; ok {
				return value, nil
			}
		}

		return nil, fmt.Errorf("read Secret %s: it has no key %q", ref.Name, keys[0])
	}

	if encoded != "" {
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, fmt.Errorf("decode cloud-init data: %w", err)
		}

		return raw, nil
	}

	if text == "" {
		return nil, nil
	}

	return []byte(text), nil
}

func (c *Cluster) loadSecret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return nil, fmt.Errorf("get Secret %s: %w", name, err)
	}

	return secret.Data, nil
}
