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

// Labels of volumes that cloud-init reads.
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

// drive makes the files of the instance's cloud-init ISO; nil means that it has none.
// A Secret that is not there is an error.
func (c *Cluster) drive(ctx context.Context, instance *virtv1.VirtualMachineInstance) (map[string][]byte, error) {
	for _, v := range instance.Spec.Volumes {
		switch {
		case v.CloudInitNoCloud != nil:
			s := v.CloudInitNoCloud

			return c.cloudInit(ctx, instance, fileUser, fileNetwork, cloudInit{
				s.UserDataSecretRef, s.UserDataBase64, s.UserData,
				s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData,
			})
		case v.CloudInitConfigDrive != nil:
			s := v.CloudInitConfigDrive

			return c.cloudInit(ctx, instance, fileOpenStackUser, fileOpenStackNetwork, cloudInit{
				s.UserDataSecretRef, s.UserDataBase64, s.UserData,
				s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData,
			})
		case v.Secret != nil && (v.Secret.VolumeLabel == labelNoCloud || v.Secret.VolumeLabel == labelConfigDrive):
			return c.secret(ctx, instance.Namespace, v.Secret.SecretName)
		}
	}

	return nil, nil //nolint:nilnil // nil is none
}

// cloudInit is what both of KubeVirt's cloud-init volumes have.
type cloudInit struct {
	userRef              *corev1.LocalObjectReference
	userBase64, userText string
	networkRef           *corev1.LocalObjectReference
	networkBase64        string
	networkText          string
}

func (c *Cluster) cloudInit(
	ctx context.Context, instance *virtv1.VirtualMachineInstance, userFile, networkFile string, from cloudInit,
) (map[string][]byte, error) {
	files := map[string][]byte{}

	// virt-launcher takes both spellings of the keys (pkg/cloud-init/cloud-init.go).
	user, err := c.part(ctx, instance.Namespace, from.userRef, from.userBase64, from.userText, "userdata", "userData")
	if err != nil {
		return nil, err
	}

	network, err := c.part(ctx, instance.Namespace, from.networkRef, from.networkBase64, from.networkText,
		"networkdata", "networkData")
	if err != nil {
		return nil, err
	}

	files[userFile] = user
	if userFile == fileUser {
		files[fileMeta] = fmt.Appendf(nil, "instance-id: %s.%s\nlocal-hostname: %s\n",
			instance.Name, instance.Namespace, hostname(instance))
	}

	if network != nil {
		files[networkFile] = network
	}

	return files, nil
}

func hostname(instance *virtv1.VirtualMachineInstance) string {
	if instance.Spec.Hostname != "" {
		return instance.Spec.Hostname
	}

	return instance.Name
}

func (c *Cluster) part(
	ctx context.Context, namespace string, ref *corev1.LocalObjectReference, encoded, text string, keys ...string,
) ([]byte, error) {
	if ref != nil {
		data, err := c.secret(ctx, namespace, ref.Name)
		if err != nil {
			return nil, err
		}

		for _, key := range keys {
			if value, ok := data[key]; ok {
				return value, nil
			}
		}

		return nil, fmt.Errorf("read secret %s: it has no key %q", ref.Name, keys[0])
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

func (c *Cluster) secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return nil, fmt.Errorf("mount secret %s: %w", name, err)
	}

	return secret.Data, nil
}
