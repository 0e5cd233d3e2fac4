# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What a user of Proxmox VE keeps in Terraform: a pool, a role, a user with a grant and a token, a file, and a machine
# that is cloned from a template and configured by cloud-init.

terraform {
  required_providers {
    proxmox = { source = "bpg/proxmox" }
  }
}

provider "proxmox" {
  # The endpoint and the credentials come from the environment.
}

data "proxmox_virtual_environment_datastores" "all" { node_name = "pve1" }
data "proxmox_virtual_environment_nodes" "all" {}

resource "proxmox_virtual_environment_pool" "p" {
  pool_id = "tofu"
  comment = "of a test"
}

resource "proxmox_virtual_environment_role" "r" {
  role_id    = "Tofu"
  privileges = ["VM.Audit", "VM.PowerMgmt"]
}

resource "proxmox_virtual_environment_user" "u" {
  user_id  = "tofu@pve"
  password = "a-long-password"
  comment  = "of a test"
  enabled  = true

  acl {
    path      = "/vms"
    role_id   = proxmox_virtual_environment_role.r.role_id
    propagate = true
  }
}

resource "proxmox_virtual_environment_acl" "a" {
  token_id  = proxmox_virtual_environment_user_token.t.id
  role_id   = proxmox_virtual_environment_role.r.role_id
  path      = "/vms"
  propagate = true
}

resource "proxmox_virtual_environment_user_token" "t" {
  user_id    = proxmox_virtual_environment_user.u.user_id
  token_name = "tofu"
  comment    = "of a test"
}

resource "proxmox_virtual_environment_file" "iso" {
  node_name    = "pve1"
  datastore_id = "local"
  content_type = "iso"
  source_file { path = "${path.module}/tool.iso" }
}

resource "proxmox_virtual_environment_vm" "vm" {
  name      = "tofu"
  node_name = "pve1"
  vm_id     = 5000
  pool_id   = proxmox_virtual_environment_pool.p.pool_id
  started   = true
  stop_on_destroy = true
  tags      = ["tofu"]

  clone {
    vm_id = 9001
    full  = false
  }

  cpu { cores = 2 }
  memory { dedicated = 1024 }
  network_device { bridge = "vmbr0" }

  initialization {
    ip_config {
      ipv4 {
        address = "10.0.0.5/24"
        gateway = "10.0.0.1"
      }
    }
    user_account {
      username = "debian"
      password = "secret12"
    }
  }
}
