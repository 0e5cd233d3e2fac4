# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Creates a template for HyperFleet's machines from a VM with a cloud image of Debian 12 or 13, with Packer. It prepares
# the image with ../../customize.sh, as make-template.sh does. docs/guides/proxmox-template.md describes how to use it.

packer {
  required_plugins {
    proxmox = {
      source  = "github.com/hashicorp/proxmox"
      version = ">= 1.2.3"
    }
  }
}

variable "node" {
  type        = string
  description = "The node on which the template is created."
}

variable "base_vm_id" {
  type        = number
  description = "The ID of the VM with the cloud image, which has a cloud-init drive. It is cloned and not changed."
}

variable "address" {
  type        = string
  description = "A free address with its prefix length, such as 192.0.2.10/24. The VM has it until it is a template."
}

variable "gateway" {
  type        = string
  description = "The gateway of this address."
}

variable "nameserver" {
  type        = string
  description = "The DNS server of the VM. It has to resolve the names of Debian's package servers."
}

variable "setup" {
  type        = string
  default     = "hyperfleet-setup"
  description = "The folder with bootstrap-service, and optionally with spire-agent, actions-runner.tar.gz and packages."
}

variable "template_id" {
  type    = number
  default = 9000
}

variable "template_name" {
  type    = string
  default = "debian-12-runner"
}

variable "tags" {
  type        = string
  default     = ""
  description = "Tags of the template, separated by semicolons. A HypervisorMachineTemplate can find a template by its tags."
}

variable "bridge" {
  type    = string
  default = "vmbr0"
}

variable "user" {
  type        = string
  default     = "debian"
  description = "The user of the image, whom cloud-init gives Packer's key. The template has this user no longer."
}

# The plugin reads PROXMOX_URL, PROXMOX_USERNAME and PROXMOX_TOKEN.
source "proxmox-clone" "linux" {
  node          = var.node
  clone_vm_id   = var.base_vm_id
  full_clone    = true
  vm_id         = var.template_id
  template_name = var.template_name
  tags          = var.tags
  task_timeout  = "10m"

  os              = "l26"
  cpu_type        = "host"
  cores           = 2
  memory          = 4096
  scsi_controller = "virtio-scsi-single"
  serials         = ["socket"]

  vga {
    type = "serial0"
  }

  network_adapters {
    model  = "virtio"
    bridge = var.bridge
  }

  # Cloud images of Debian have no guest agent, so Packer cannot ask for the address.
  ipconfig {
    ip      = var.address
    gateway = var.gateway
  }

  nameserver   = var.nameserver
  ssh_host     = split("/", var.address)[0]
  ssh_username = var.user
  ssh_timeout  = "15m"
}

build {
  sources = ["source.proxmox-clone.linux"]

  # customize.sh installs packages, so nothing else may do it at the same time. The exit code 2 of cloud-init, which must be
  # the last command, reports warnings.
  provisioner "shell" {
    inline = [
      "mkdir /tmp/hyperfleet-setup",
      "sudo systemctl stop apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service",
      "cloud-init status --wait",
    ]
    valid_exit_codes = [0, 2]
  }

  provisioner "file" {
    source      = "${var.setup}/"
    destination = "/tmp/hyperfleet-setup"
  }

  # The service for the random seed would save a seed again when the VM stops, and all machines would share it. The
  # user is deleted because of Packer's key and the right to use sudo. Packer cannot delete the script after that,
  # so it deletes itself.
  provisioner "shell" {
    script = "${path.root}/../../customize.sh"
    execute_command = join(" && ", [
      "sudo mv /tmp/hyperfleet-setup /opt/hyperfleet-setup",
      "sudo systemctl stop systemd-random-seed.service",
      "sudo sh {{ .Path }}",
      "rm {{ .Path }}",
      "sudo sh -c 'rm -f /etc/sudoers.d/90-cloud-init-users && userdel --force --remove ${var.user}'",
    ])
    skip_clean = true
  }
}
